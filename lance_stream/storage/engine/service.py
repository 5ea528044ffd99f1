"""The common part of the settings of S3, Google Cloud Storage and Azure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from lance_stream.storage.engine.credentials import Credentials
from lance_stream.storage.engine.responses import Dialect
from lance_stream.storage.objects.object_requests import RequestPolicy


class ObjectService(ABC):
    """Base class for the settings of a service; see also `ServiceSettings`.

    Attributes:
        retry_policy: The limits of a request.
        dialect: The service's error codes.
        knows_suffixes: Whether it supports requests for the last bytes of an object.
        resumes_listings: Whether a listing can begin after a name.
    """

    retry_policy: RequestPolicy
    dialect: Dialect
    knows_suffixes = True
    resumes_listings = True

    @abstractmethod
    def is_sure_to_create_once(self) -> bool | None:
        """Return whether the service supports conditional creates; None if this must be tested."""

    @property
    @abstractmethod
    def service(self) -> tuple[str | None, ...]:
        """The service and account; see `Store.service`."""

    @abstractmethod
    def shared_uri(self, container: str) -> str:
        """Return the URI of a bucket that is the same for all programs."""

    @abstractmethod
    def lance_credentials(self) -> Mapping[str, str]:
        """Return the credentials by pylance's names; empty if pylance has to find them itself."""

    @abstractmethod
    def client_options(self) -> Mapping[str, Any]:
        """Return the options of the HTTP client, by obstore's names."""

    @abstractmethod
    def credentials(self) -> Credentials:
        """Return the credentials of requests."""

    @abstractmethod
    def open(self, container: str, **how: Any) -> Any:
        """Return obstore's store of a bucket."""

    @abstractmethod
    def config(self, container: str) -> dict[str, Any]:
        """Return the configuration of a bucket, by obstore's names."""
