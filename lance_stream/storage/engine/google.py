"""Storage options for Google Cloud Storage: the names of gcsfs and of Lance.

    endpoint       endpoint_url, google_base_url; otherwise STORAGE_EMULATOR_HOST; otherwise
                   Google's endpoint
    credentials    token, google_service_account, google_service_account_key, anon; otherwise those
                   that google-auth finds; at an endpoint without TLS none, as emulators expect

`options.names` has all names.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.connection import ObstoreService, connection_options
from lance_stream.storage.engine.credentials import Credentials
from lance_stream.storage.engine.google_login import REMEDIES, Login, read_key
from lance_stream.storage.engine.responses import Dialect
from lance_stream.storage.objects.object_requests import RequestPolicy
from lance_stream.storage.options.names import (
    NAMESPACE_TABLE,
    as_flag,
    as_text,
    connection_of,
    retry_policy_of,
    take_settings,
)

DEFAULT_ENDPOINT: Final = "https://storage.googleapis.com"

_DIALECT: Final = Dialect(
    later=frozenset({"SlowDown", "TooManyRequests", "InternalError", "ServiceUnavailable"}),
    no_bucket=frozenset({"NoSuchBucket"}),
    remedies={
        **dict.fromkeys(("404", "NoSuchBucket"), "create the bucket, or correct the table's URI"),
        "401": f"the service does not accept the credentials. {REMEDIES}",
        "403": (
            "the credentials are valid, but do not allow this. Grant the role Storage Object User "
            "on the bucket, or set other credentials in the storage options"
        ),
        "UserProjectMissing": "set the storage option requester_pays to the project",
        "301": "correct the storage option google_base_url",
    },
)


@dataclass(frozen=True)
class GoogleSettings(ObstoreService):
    """The settings of Google Cloud Storage.

    Attributes:
        endpoint: The URL before "/storage/v1", without a trailing "/".
        login: The credentials.
        user_project: The project that pays for requests, if the bucket's owner does not.
        proxy_url: A proxy; None for the environment's.
        any_certificate: Whether to accept any certificate without verification.
        retry_policy: The limits of a request.
        max_requests_at_once: Maximum number of concurrent requests.
    """

    endpoint: str = DEFAULT_ENDPOINT
    login: Login = field(default_factory=lambda: Login("default"))
    user_project: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    any_certificate: bool = False
    retry_policy: RequestPolicy = field(default_factory=RequestPolicy)
    max_requests_at_once: int = 16

    scheme = "gs"
    dialect = _DIALECT
    extra = "gcs"
    purpose = "Google Cloud Storage"

    def is_sure_to_create_once(self) -> bool | None:
        """Return True: the service supports conditional creates."""
        return True

    @property
    def service(self) -> tuple[str | None, ...]:
        """The service and its endpoint."""
        return "google", self.endpoint

    def shared_uri(self, container: str) -> str:
        """Return the URI of a bucket."""
        return f"gs://{container}"

    def lance_credentials(self) -> Mapping[str, str]:
        """Return the credentials by pylance's names."""
        return self.login.lance_options()

    def client_options(self) -> Mapping[str, Any]:
        """Return the options of the HTTP client, by obstore's names."""
        options = connection_options(self.endpoint, self.any_certificate, self.proxy_url)
        if self.user_project is not None:
            options["default_headers"] = {"x-goog-user-project": self.user_project}
        return options

    def credentials(self) -> Credentials:
        """Return the credentials of requests."""
        return self.login.connect()

    def open(self, container: str, **how: Any) -> Any:
        """Return obstore's store of a bucket."""
        from obstore.store import GCSStore

        config: Any = self.config(container)
        return GCSStore(container, config=config, **how)

    def config(self, container: str) -> dict[str, Any]:  # noqa: ARG002  # the same for all
        """Return the configuration of a bucket, by obstore's names."""
        return {"base_url": self.endpoint, "skip_signature": self.login.kind == "anonymous"}

    def where(self, container: str) -> str:
        """Return the bucket's name for errors; see `ServiceSettings.where`."""
        endpoint = "" if self.endpoint == DEFAULT_ENDPOINT else f" at {self.endpoint}"
        return f"the bucket {container!r} of Google Cloud Storage{endpoint}"


def google_settings(options: Mapping[str, Any]) -> GoogleSettings:
    """Return the settings of Google Cloud Storage from storage options.

    Raises:
        InvalidInputError: An option is unknown or invalid, or two options contradict each other.
    """
    settings = take_settings(options, "google")
    login, endpoint = _login(settings)
    if "endpoint" in settings:
        endpoint = as_text("endpoint_url", settings["endpoint"])
    endpoint = _endpoint(endpoint or _default_endpoint())
    if endpoint.startswith("http:"):
        if not as_flag("allow_http", settings.get("allow_http", True)):
            raise InvalidInputError(
                f"the endpoint {endpoint} is plain HTTP, which the storage option allow_http "
                "forbids"
            )
        login = login or Login("anonymous")
    return GoogleSettings(
        endpoint=endpoint,
        login=login or Login("default"),
        user_project=_user_project(settings),
        retry_policy=retry_policy_of(settings),
        **connection_of(settings),
    )


def _login(settings: Mapping[str, Any]) -> tuple[Login | None, str | None]:
    """Return the credentials and the endpoint that they name; None for what is not set."""
    is_anonymous = as_flag("anon", settings.get("anonymous", False))
    identities = [
        name for name in ("token", "service_account", "service_account_key") if name in settings
    ]
    if len(identities) + is_anonymous > 1:
        raise InvalidInputError(
            "the storage options contain more than one kind of credentials: "
            f"{', '.join([*identities, 'anon'] if is_anonymous else identities)}. Omit all but one"
        )
    if is_anonymous:
        return Login("anonymous"), None
    if NAMESPACE_TABLE in settings:
        return Login("namespace", settings[NAMESPACE_TABLE]), None
    if "token" in settings:
        return _login_of_token(settings["token"])
    if "service_account" in settings:
        path = as_text("google_service_account", settings["service_account"])
        if path.lstrip().startswith("{"):  # an error about a missing file would show it
            raise InvalidInputError(
                "the storage option google_service_account is the path of a key file. Pass the "
                "file's JSON as google_service_account_key"
            )
        return Login("file", path), None
    if "service_account_key" in settings:
        return _login_of_key(settings["service_account_key"])
    return None, None


def _login_of_token(token: Any) -> tuple[Login | None, str | None]:
    if isinstance(token, Mapping):
        return _login_of_key(token)
    text = as_text("token", token)
    if text in _LOGINS:
        return Login(_LOGINS[text]), None
    if text in ("browser", "cache"):
        raise InvalidInputError(
            f"only gcsfs supports the storage option token={text!r}. Run `gcloud auth "
            "application-default login` once, and omit the option"
        )
    if text.startswith("{"):
        return _login_of_key(text)
    is_file = text.endswith(".json") or Path(text).is_file()
    return Login("file" if is_file else "token", text), None


def _login_of_key(key: Any) -> tuple[Login | None, str | None]:
    values = (
        key if isinstance(key, Mapping) else read_key(as_text("google_service_account_key", key))
    )
    if not values:
        raise InvalidInputError(
            "the storage option google_service_account_key is not the JSON of a key that Google "
            "issued. For the path of a key file, use google_service_account"
        )
    endpoint = values.get("gcs_base_url")
    if values.get("disable_oauth") is True:
        return Login("anonymous"), endpoint
    if "type" not in values and "refresh_token" in values:
        values = {"type": "authorized_user", **values}
    return Login("key", json.dumps(dict(values), sort_keys=True)), endpoint


def _default_endpoint() -> str:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator and emulator != "default":
        return emulator if "://" in emulator else f"http://{emulator}"
    universe = os.environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "googleapis.com")
    return f"https://storage.{universe}"


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise InvalidInputError(
            f"the endpoint {_without_login(url)!r} is not a URL such as {DEFAULT_ENDPOINT} or "
            "http://127.0.0.1:4443"
        )
    if "@" in parts.netloc:
        raise InvalidInputError(
            f"the endpoint {_without_login(url)!r} contains a user name or a password: remove "
            "them, and set credentials with the other storage options"
        )
    return url.rstrip("/").removesuffix("/storage/v1")


def _user_project(settings: Mapping[str, Any]) -> str | None:
    value = settings.get("requester_pays", False)
    project = settings.get("project")
    if isinstance(value, str) and value.lower() not in ("true", "false", "1", "0"):
        return value
    if not as_flag("requester_pays", value):
        return None
    if not project:
        raise InvalidInputError(
            "the storage option requester_pays must be the project that pays, or true together "
            "with the storage option project"
        )
    return as_text("project", project)


def _without_login(url: str) -> str:
    """Return a URL without user name and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url[:80]


_LOGINS: Final[Mapping[str, Literal["default", "machine", "anonymous"]]] = {
    "google_default": "default",
    "cloud": "machine",
    "anon": "anonymous",
}
