"""Access tokens of Google Cloud Storage, issued and renewed by google-auth."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import google.auth
from google.auth import compute_engine, exceptions
from google.auth.transport.requests import Request
from google.oauth2 import credentials, service_account

from lance_stream.storage.engine.credentials import RenewedCredentials
from lance_stream.storage.engine.google import WAYS_OUT, Login, read_key
from lance_stream.storage.object_requests import RefusedError, TryAgainError

_SCOPES: Final = ["https://www.googleapis.com/auth/devstorage.read_write"]
_MAX_ANSWER: Final = 300


class GoogleCredentials(RenewedCredentials):
    """An access token, renewed before it ends.

    Args:
        login: The credentials; not "anonymous", and not "token".
    """

    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login
        self._credentials: Any = None

    def is_good(self) -> bool:
        """Return whether the token is valid for some more time."""
        return bool(self._credentials.valid)

    def fetch(self) -> Mapping[str, Any]:
        """Return a new token."""
        try:
            if self._credentials is None:
                self._credentials = _credentials(self._login)
            self._credentials.refresh(Request())
        except exceptions.GoogleAuthError as error:
            reason = str(error.args[0] if error.args else error)[:_MAX_ANSWER].rstrip(".")
            if error.retryable or isinstance(error, exceptions.TransportError):
                raise TryAgainError(f"no access token yet: {reason}") from error
            raise RefusedError(f"there are no credentials: {reason}. {WAYS_OUT}") from error
        except (ValueError, OSError) as error:  # an invalid key, or a file that cannot be read
            reason = str(error)[:_MAX_ANSWER].rstrip(".")
            raise RefusedError(f"the credentials are not usable: {reason}. {WAYS_OUT}") from error
        return {"token": self._credentials.token}


def _credentials(login: Login) -> Any:
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
