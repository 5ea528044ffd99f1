"""The requests to an object service: one per call, without retries.

`engine.requests` implements `ObjectRequests` for each service. `object_store` combines ranges and
handles concurrency, retries and errors.

The engine reports the outcome of a failed request by one of three errors:

    MissingError        there is no such object
    TryAgainError       no response, or a temporary error: the same request may succeed later
    RefusedError        the service refused, and would refuse again

A key is the full name of an object in its bucket or container.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from lance_stream.retries import RetryPolicy

Data = bytes | memoryview

PART_BYTES: Final = 8 << 20
"""The size of a part of a larger file."""


OTHER_NAME: Final = (
    "Names with an empty part, '.', '..' or a control character cannot be requested or listed: "
    "rename or delete the object with another program"
)
"""The remedy for names that obstore does not accept."""


class MissingError(Exception):
    """There is no such object."""


class TryAgainError(Exception):
    """There was no response, or a temporary error.

    Args:
        response: The response as text: "503 SlowDown", "no response within 30 s".
        after_seconds: The delay that the service requests; None if it does not state one.
    """

    def __init__(self, response: str, after_seconds: float | None = None) -> None:
        super().__init__(response)
        self.response = response
        self.after_seconds = after_seconds


class RefusedError(Exception):
    """The service refused.

    Args:
        response: The response as text, with the remedy and without secrets.
    """


@dataclass(frozen=True, slots=True)
class RequestPolicy(RetryPolicy):
    """The limits of a request to a service.

    By default, the time is the effective limit: a service that restarts refuses connections
    immediately, which would use up a small number of attempts within seconds.

    Attributes:
        request_seconds: Time limit of one attempt.
        connect_seconds: Time limit for reaching the service.
    """

    max_attempts: int = 60
    first_delay_seconds: float = 0.1
    max_delay_seconds: float = 10.0
    total_seconds: float = 120.0
    request_seconds: float = 60.0
    connect_seconds: float = 10.0


class ObjectInfo(NamedTuple):
    """The properties of an object.

    Attributes:
        key: The full name.
        size_bytes: The size.
        modified: The time of the last write, in seconds since 1970-01-01 UTC.
        etag: Different for different content, without quotes; the content's MD5 in hex if the
            service states it. Empty if unknown.
    """

    key: str
    size_bytes: int
    modified: float
    etag: str


class Pages(Protocol):
    """A listing, page by page."""

    async def next(self) -> Sequence[ObjectInfo] | None:
        """Return the next objects, in the order of their keys' bytes; None after the last ones.

        A page that failed can be requested again; some objects may then be returned twice.
        """
        ...


class Upload(Protocol):
    """A large object that is sent in parts; it exists after `finish`."""

    async def write(self, part: Data) -> None:
        """Send a part of `PART_BYTES`, or the last one. Lost parts are retried."""
        ...

    async def finish(self) -> None:
        """Make the object visible, replacing an older one."""
        ...

    async def abort(self) -> None:
        """Discard all parts."""
        ...


class ObjectRequests(Protocol):
    """The requests to one bucket or container."""

    async def get(self, key: str, start: int, stop: int | None) -> Data:
        """Return the bytes of a range; short, or empty, if the object ends before the range.

        Raises:
            TryAgainError: Also if the response is shorter than announced.
        """
        ...

    async def get_end(self, key: str, num_bytes: int) -> tuple[Data, int]:
        """Return the last bytes of an object, or all of a shorter one, and its size."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return an object's properties."""
        ...

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write an object.

        Returns:
            False if `once` is set and the name is taken; nothing was replaced.
        """
        ...

    def list_pages(self, prefix: str, *, is_flat: bool, limit: int | None) -> Pages:
        """Return the objects whose keys begin with a prefix, or some of them.

        Args:
            prefix: Ends with "/", or is empty.
            is_flat: Whether to omit objects with another "/" after the prefix.
            limit: The number of objects that suffice; None for all.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        ...

    async def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket, replacing an older one."""
        ...

    def open_upload(self, key: str) -> Upload:
        """Start sending a large object in parts; nothing is sent yet."""
        ...

    async def close(self) -> None:
        """Drop the connections."""
        ...


class ServiceSettings(Protocol):
    """The settings of a service: hashable, picklable, without secrets in `repr`."""

    @property
    def scheme(self) -> str:
        """The scheme of the service's URIs."""
        ...

    @property
    def service(self) -> tuple[str | None, ...]:
        """The service and account; see `Store.service`."""
        ...

    def shared_uri(self, container: str) -> str:
        """Return the URI of a bucket that is the same for all programs; see `Store.shared_uri`."""
        ...

    def lance_options(self, container: str) -> Mapping[str, str]:
        """Return the settings of a bucket by pylance's names; see `Store.lance_options`."""
        ...

    @property
    def retry_policy(self) -> RequestPolicy:
        """The limits of a request."""
        ...

    @property
    def max_requests_at_once(self) -> int:
        """Maximum number of concurrent requests of one process to one bucket."""
        ...

    def connect(self, container: str) -> ObjectRequests:
        """Return a driver for a bucket or container. Called on the thread of the event loop.

        Raises:
            InvalidInputError: A library is not installed, or a setting is invalid.
        """
        ...

    def where(self, container: str) -> str:
        """Return the service's name for errors: "the bucket 'b' of S3 at http://127.0.0.1:9000"."""
        ...
