"""Credentials of Google Cloud Storage: a token, a key, a file, or those that google-auth finds.

google-auth issues and renews access tokens. It is imported when a token is needed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from lance_stream.storage.engine.credentials import (
    Credentials,
    FixedCredentials,
    RenewedCredentials,
)
from lance_stream.storage.extras import requires_extra
from lance_stream.storage.namespaces.vended_credentials import VendedCredentials, vended_options
from lance_stream.storage.objects.object_requests import RefusedError, TryAgainError
from lance_stream.storage.options.names import take_settings

_SCOPES: Final = ["https://www.googleapis.com/auth/devstorage.read_write"]
_MAX_ANSWER: Final = 300

REMEDIES: Final = (
    "Set one of the storage options google_service_account (a file), google_service_account_key "
    "(its JSON) or token; or run `gcloud auth application-default login`; or, for a public bucket, "
    "set token='anon'"
)


@dataclass(frozen=True)
class Login:
    """Settings for the authorization of requests.

    Attributes:
        kind: "anonymous": no credentials. "token": an access token, which is never renewed.
            "namespace": a token that the namespace of a table vends. "file": a file with a service
            account's key or a user's credentials. "key": its JSON. "machine": the machine's
            account, at Google. "default": the credentials that google-auth finds, in its order: the
            file that GOOGLE_APPLICATION_CREDENTIALS names, the credentials of gcloud, the machine's
            account.
        value: The token, the table in its namespace, the file's path, or the JSON.
    """

    kind: Literal["anonymous", "token", "namespace", "file", "key", "machine", "default"]
    value: str = field(default="", repr=False)

    def connect(self) -> Credentials:
        """Return the credentials."""
        if self.kind == "anonymous":
            return FixedCredentials({"token": ""})
        if self.kind == "token":
            return FixedCredentials({"token": self.value})
        if self.kind == "namespace":
            return VendedCredentials(self.value, _read_token)
        with requires_extra("gcs", "credentials of Google Cloud Storage"):
            return GoogleCredentials(self)

    def lance_options(self) -> Mapping[str, str]:
        """Return the credentials by pylance's names; empty if pylance has to find them itself."""
        if self.kind == "namespace":
            return vended_options(self.value, "google")
        name = _OF_PYLANCE.get(self.kind)
        return {} if name is None else {name: self.value}


_OF_PYLANCE: Final = {
    "token": "google_storage_token",
    "file": "google_service_account",
    "key": "google_service_account_key",
}


def _read_token(options: Mapping[str, Any]) -> Credentials:
    token = take_settings(options, "google").get("token")
    if token is None:
        raise RefusedError("the namespace vended no token of Google Cloud Storage")
    return Login("token", token).connect()


class GoogleCredentials(RenewedCredentials):
    """An access token, renewed before it expires.

    Args:
        login: The settings; their kind is neither "anonymous" nor "token".

    Raises:
        ImportError: google-auth is not installed.
    """

    def __init__(self, login: Login) -> None:
        import google.auth.transport.requests  # noqa: F401  # a missing library is reported here

        # The metadata server returns the same token until shortly before its expiry.
        super().__init__(timedelta(minutes=3, seconds=45))
        self._login = login
        self._provider: Callable[[], Any] | None = None

    def fetch(self) -> Mapping[str, Any]:
        """Return a new token."""
        from google.auth import exceptions
        from obstore.auth.google import GoogleCredentialProvider

        try:
            if self._provider is None:
                self._provider = GoogleCredentialProvider(_credentials(self._login))
            token: Mapping[str, Any] = self._provider()
        except exceptions.GoogleAuthError as error:
            reason = str(error.args[0] if error.args else error)[:_MAX_ANSWER].rstrip(".")
            if error.retryable or isinstance(error, exceptions.TransportError):
                raise TryAgainError(f"google-auth could not fetch a token: {reason}") from error
            raise RefusedError(f"google-auth finds no credentials: {reason}. {REMEDIES}") from error
        except (ValueError, OSError) as error:  # an invalid key, or a file that cannot be read
            reason = str(error)[:_MAX_ANSWER].rstrip(".")
            raise RefusedError(f"the credentials are invalid: {reason}. {REMEDIES}") from error
        return token


def _credentials(login: Login) -> Any:
    import google.auth
    from google.auth import compute_engine
    from google.oauth2 import credentials, service_account

    if login.kind == "machine":
        return compute_engine.Credentials(scopes=_SCOPES)
    if login.kind == "default":
        return google.auth.default(scopes=_SCOPES)[0]
    key = read_key(Path(login.value).read_text() if login.kind == "file" else login.value)
    if key.get("type") == "service_account":
        return service_account.Credentials.from_service_account_info(key, scopes=_SCOPES)
    if key.get("type") == "authorized_user":
        return credentials.Credentials.from_authorized_user_info(key, scopes=_SCOPES)
    raise ValueError(
        f"their type is {str(key.get('type'))[:40]!r}, not that of a service account or a user. "
        "Credentials of other types can run programs and contact servers that they name. If they "
        "are yours, set the environment variable GOOGLE_APPLICATION_CREDENTIALS to their file"
    )


def read_key(text: str) -> Mapping[str, Any]:
    """Return the JSON object of a key; empty if it is not one."""
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return key if isinstance(key, dict) else {}
