"""The connection of obstore to a service, and the options with which pylance opens its buckets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.service import ObjectService
from lance_stream.storage.extras import requires_extra
from lance_stream.storage.objects.object_requests import ObjectRequests

_IDLE_SECONDS: Final = "20s"  # services close idle connections


class ObstoreService(ObjectService):
    """Base class for the settings of a service that obstore supports; see also `ServiceSettings`.

    Attributes:
        extra: The extra of this package that installs obstore for it.
        purpose: The feature that needs the extra, for errors.
    """

    extra: str
    purpose: str

    def connect(self, container: str) -> ObjectRequests:
        """Return a driver for a bucket; see `ServiceSettings.connect`."""
        with requires_extra(self.extra, self.purpose):
            from lance_stream.storage.engine.requests import EngineRequests
        return EngineRequests(self, container)

    def lance_options(self, container: str) -> Mapping[str, str]:
        """Return the settings of a bucket by pylance's names; see `Store.lance_options`.

        pylance and obstore are built on the same library, so most settings have the same names and
        values. Without credentials in the options, pylance searches for them in the same places as
        our libraries: in the environment and on the machine.
        """
        client = self.client_options()
        for option, reason in _UNKNOWN_TO_PYLANCE.items():
            if option in client:
                raise InvalidInputError(reason)
        settings = {
            **{name: client[name] for name in _CLIENT_OF_PYLANCE if name in client},
            **self.config(container),
            **self.lance_credentials(),
        }
        return {name: _as_text(value) for name, value in settings.items()}


_CLIENT_OF_PYLANCE: Final = ("allow_http", "allow_invalid_certificates", "proxy_url")
_UNKNOWN_TO_PYLANCE: Final = {
    "root_certificate": (
        "pylance, which builds indices, does not accept a certificate file: add the authority to "
        "the certificates of the machine (SSL_CERT_FILE)"
    ),
    "default_headers": (
        "pylance, which builds indices, cannot name a project that pays for its requests: omit the "
        "storage option requester_pays"
    ),
}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def connection_options(
    endpoint: str | None,
    any_certificate: bool,
    proxy_url: str | None,
    certificates: str | None = None,
) -> dict[str, Any]:
    """Return the options of obstore's HTTP client.

    Args:
        endpoint: The endpoint's URL; None for the service's default, which is encrypted.
        any_certificate: Whether to accept any certificate without verification.
        proxy_url: A proxy; None for the environment's.
        certificates: A file with the certificates of a private authority.

    Raises:
        InvalidInputError: The certificate file cannot be read.
    """
    options: dict[str, Any] = {
        # Redirects from https:// to http:// are not followed.
        "allow_http": endpoint is not None and endpoint.lower().startswith("http:"),
        "pool_idle_timeout": _IDLE_SECONDS,
        "user_agent": "lance-stream",
    }
    if any_certificate:
        options["allow_invalid_certificates"] = True
    if proxy_url is not None:
        options["proxy_url"] = proxy_url
    if certificates is not None:
        try:
            options["root_certificate"] = Path(certificates).read_bytes()
        except OSError as error:
            raise InvalidInputError(
                f"the certificate file {certificates!r} cannot be read: {error.strerror}"
            ) from error
    return options
