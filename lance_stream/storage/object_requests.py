"""What an object service is asked for: one request a call, and no call is tried again here.

`engine.requests` keeps to `ObjectRequests` for each service. Joining ranges, concurrency, retries
and errors stand above it in `object_store`.

The engine says how a request went by what it raises:

    MissingError        there is no such object
    TryAgainError       no answer, or "later": the same request may go through in a moment
    RefusedError        the service said no, and would say it again

Keys are the service's own: the full name of an object in its bucket or container.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from lance_stream.backoff import Backoff

Data = bytes | memoryview

PART_BYTES: Final = 8 << 20
"""What is sent at once of a file that is larger."""


OTHER_NAME: Final = (
    "Names with an empty part, '.', '..' or a control character cannot be asked for or listed: "
    "rename the object, or delete it, with another program"
)
"""What helps against names that obstore does not take."""


class MissingError(Exception):
    """There is no such object."""


class TryAgainError(Exception):
    """No answer came, or one that says "later".

    Args:
        answer: What came, in words: "503 SlowDown", "no answer within 30 s".
        after_seconds: How long the service wants to be left alone; None if it did not say.
    """

    def __init__(self, answer: str, after_seconds: float | None = None) -> None:
        super().__init__(answer)
        self.answer = answer
        self.after_seconds = after_seconds


class RefusedError(Exception):
    """The service said no.

    Args:
        answer: What it said, in words, with the way out; nothing secret.
    """


@dataclass(frozen=True, slots=True)
class Patience(Backoff):
    """How long and how often a service is asked for one thing; see `Backoff`, too.

    By default the time is the bound, for a service that is restarted, or reached by another route,
    refuses connections at once: a number of attempts would be used up in a few seconds.

    Attributes:
        total_seconds: No new attempt is begun after so long.
        request_seconds: How long one attempt may take.
        connect_seconds: How long it may take to reach the service.
    """

    max_attempts: int = 60
    first_delay_seconds: float = 0.1
    max_delay_seconds: float = 10.0
    total_seconds: float = 120.0
    request_seconds: float = 60.0
    connect_seconds: float = 10.0


class ObjectInfo(NamedTuple):
    """An object as the service states it.

    Attributes:
        key: Its full name.
        size_bytes: Its size.
        modified: Seconds since 1970-01-01 UTC at which it was last written.
        etag: Another text for another content, without quotes; the content's MD5 in hex where the
            service states it. Empty if it says nothing.
    """

    key: str
    size_bytes: int
    modified: float
    etag: str = ""


class Pages(Protocol):
    """A listing that comes page by page."""

    async def next(self) -> Sequence[ObjectInfo] | None:
        """Return the next objects, in the order of their keys' bytes; None behind the last ones.

        A page that could not be had may be asked for again: some objects may come twice then.
        """
        ...


class Upload(Protocol):
    """A large object that is sent in parts, and is there once it is finished."""

    async def write(self, part: Data) -> None:
        """Send a part of `PART_BYTES`, or the last one. Parts that are lost are sent again."""
        ...

    async def finish(self) -> None:
        """Make the object visible, in place of an older one."""
        ...

    async def abort(self) -> None:
        """Leave nothing behind."""
        ...


class ObjectRequests(Protocol):
    """The requests that one bucket or container answers."""

    async def get(self, key: str, start: int, stop: int | None) -> Data:
        """Return the bytes of a range; short, or empty, where the object ends before it does.

        Raises:
            TryAgainError: Also when the answer is shorter than it says.
        """
        ...

    async def get_end(self, key: str, num_bytes: int) -> tuple[Data, int]:
        """Return the last bytes of an object, all of a shorter one, and its size."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return what is said of an object."""
        ...

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write an object.

        Returns:
            False if `once` was asked for and the name is taken; nothing was replaced.
        """
        ...

    def list_pages(self, prefix: str, *, only_here: bool, limit: int | None) -> Pages:
        """Return the objects whose keys begin with a prefix, or some of them.

        Args:
            prefix: Ends with "/", or is empty.
            only_here: Whether objects with a further "/" in their key are left out.
            limit: More than so many are not needed.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; it may be gone already."""
        ...

    async def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket, in place of an older one."""
        ...

    def open_upload(self, key: str) -> Upload:
        """Begin to send a large object in parts; nothing is sent yet."""
        ...

    async def close(self) -> None:
        """Let connections go."""
        ...


class ServiceSettings(Protocol):
    """How a service is reached: hashable, picklable, with nothing secret in its `repr`."""

    @property
    def scheme(self) -> str:
        """What URIs of the service begin with."""
        ...

    @property
    def patience(self) -> Patience:
        """How long and how often it is asked."""
        ...

    @property
    def max_requests_at_once(self) -> int:
        """So many requests of one process to one bucket may be under way at once."""
        ...

    def connect(self, container: str) -> ObjectRequests:
        """Return a driver for a bucket or container. Called on the thread of the event loop.

        Raises:
            InvalidInputError: A library that it takes is not installed, or a setting is wrong.
        """
        ...

    def where(self, container: str) -> str:
        """Return in words who is asked: "the bucket 'b' of S3 at http://127.0.0.1:9000"."""
        ...
