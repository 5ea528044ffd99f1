"""Who we are to Google Cloud Storage: headers with an access token, renewed before it ends.

google-auth makes and renews tokens, with calls that block: they run in threads beside the event
loop, one at a time.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from lance_stream.storage.object_requests import RefusedError, TryAgainError

_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
_MAX_ANSWER = 300

WAYS_OUT: Final = (
    "Give one of the storage options google_service_account (a file), google_service_account_key "
    "(its JSON) or token; or run `gcloud auth application-default login`; or, for a bucket that "
    "is open to everybody, give token='anon'"
)


@dataclass(frozen=True)
class Login:
    """What proves who we are.

    Attributes:
        kind: "anonymous": nothing does. "token": an access token, which is never renewed. "file": a
            file with a service account's key or a user's credentials. "key": its JSON.
            "machine": the machine that we run on, at Google's. "default": whatever google-auth
            finds, in its order: the file that GOOGLE_APPLICATION_CREDENTIALS names, what gcloud
            left behind, the machine.
        value: The token, the file's path, or the JSON.
    """

    kind: Literal["anonymous", "token", "file", "key", "machine", "default"]
    value: str = field(default="", repr=False)


class AccessTokens:
    """The headers that prove who we are.

    Args:
        login: What proves it.
    """

    def __init__(self, login: Login) -> None:
        self._login = login
        self._credentials: Any = None
        self._one_at_a_time = asyncio.Lock()
        self._is_doubted = False
        self._was_renewed_in_doubt = False

    async def headers(self) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            RefusedError: There are no credentials, or they are not good.
            TryAgainError: Whoever gives tokens did not answer.
        """
        if self._login.kind == "anonymous":
            return {}
        if self._login.kind == "token":
            return {"Authorization": f"Bearer {self._login.value}"}
        async with self._one_at_a_time:
            if self._credentials is None or self._is_doubted or not self._credentials.valid:
                await asyncio.to_thread(self._renew)
                self._is_doubted = False
        headers: dict[str, str] = {}
        self._credentials.apply(headers)
        return headers

    def doubt(self) -> bool:
        """Note that a token was not accepted, and return whether a new one may be."""
        if self._login.kind in ("anonymous", "token") or self._was_renewed_in_doubt:
            return False
        self._is_doubted = self._was_renewed_in_doubt = True
        return True

    def trust(self) -> None:
        """Note that a token was accepted."""
        self._was_renewed_in_doubt = False

    def _renew(self) -> None:
        from google.auth import exceptions
        from google.auth.transport.requests import Request

        try:
            if self._credentials is None:
                self._credentials = _credentials(self._login)
            self._credentials.refresh(Request())
        except exceptions.GoogleAuthError as error:
            reason = str(error.args[0] if error.args else error)[:_MAX_ANSWER].rstrip(".")
            if error.retryable or isinstance(error, exceptions.TransportError):
                raise TryAgainError(f"no access token yet: {reason}") from error
            raise RefusedError(f"there are no credentials: {reason}. {WAYS_OUT}") from error
        except (ValueError, OSError) as error:  # a key that is none, a file that cannot be read
            reason = str(error)[:_MAX_ANSWER].rstrip(".")
            raise RefusedError(f"the credentials are not usable: {reason}. {WAYS_OUT}") from error


def _credentials(login: Login) -> Any:
    import google.auth
    from google.auth import compute_engine
    from google.oauth2 import credentials, service_account

    if login.kind == "machine":
        return compute_engine.Credentials(scopes=_SCOPES)
    if login.kind == "default":
        return google.auth.default(scopes=_SCOPES)[0]
    said = read_key(Path(login.value).read_text() if login.kind == "file" else login.value)
    if said.get("type") == "service_account":
        return service_account.Credentials.from_service_account_info(said, scopes=_SCOPES)
    if said.get("type") == "authorized_user":
        return credentials.Credentials.from_authorized_user_info(said, scopes=_SCOPES)
    raise ValueError(
        f"they are of the type {str(said.get('type'))[:40]!r}, not of a service account or a user. "
        "A file of another kind can run programs and ask servers that it names: if it is yours, "
        "name it in the environment variable GOOGLE_APPLICATION_CREDENTIALS"
    )


def read_key(text: str) -> Mapping[str, Any]:
    """Return what the JSON of a key says; nothing if it is none."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
