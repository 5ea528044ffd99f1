"""What an object service is asked for: one request a call, and no call is tried again here.

Each service has a driver (`s3.requests`, ...) that keeps to `ObjectRequests`. What is common,
joining ranges, concurrency, retries and errors, stands above them in `object_store`.

A driver says how a request went by what it raises:

    MissingError        there is no such object
    TryAgainError       no answer, or "later": the same request may go through in a moment
    RefusedError        the service said no, and would say it again

Keys are the service's own: the full name of an object in its bucket or container.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lance_stream.backoff import Backoff

Data = bytes | memoryview


class MissingError(Exception):
    """There is no such object; or no such upload."""


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


class Page(NamedTuple):
    """One answer to a listing.

    Attributes:
        objects: In the order of their keys' bytes.
        token: Asks for the next page; None where this is the last one.
    """

    objects: Sequence[ObjectInfo]
    token: str | None


class Upload(Protocol):
    """A large object that is sent in parts, and is there once it is finished.

    Attributes:
        part_bytes: A part's size is a multiple of this, the last one's excepted.
        max_parts_at_once: So many parts may be on their way at once; 1: in order, one by one.
    """

    part_bytes: int
    max_parts_at_once: int

    async def put_part(self, number: int, data: Data) -> None:
        """Send a part, the first one is number 0. Sending it again replaces it."""
        ...

    async def finish(self, number: int, data: Data) -> bool:
        """Send the last part, and make the object visible.

        Returns:
            False if it was begun with `once` and the name is taken; nothing was replaced.

        Raises:
            MissingError: There is no such upload (any more): perhaps it was finished by this very
                request, whose answer got lost.
        """
        ...

    async def abort(self) -> None:
        """Leave nothing behind."""
        ...


class ObjectRequests(Protocol):
    """The requests that one bucket or container answers."""

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of a range; short, or empty, where the object ends before it does.

        Raises:
            TryAgainError: Also when the answer is shorter than it says.
        """
        ...

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
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

    async def list_page(
        self, prefix: str, *, token: str | None, only_here: bool, limit: int | None
    ) -> Page:
        """Return the objects whose keys begin with a prefix, or some of them.

        Args:
            prefix: Ends with "/", or is empty.
            token: Of the page before; None for the first.
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

    async def start_upload(self, key: str, *, once: bool) -> Upload:
        """Begin to send a large object in parts.

        Args:
            key: The object.
            once: Whether it is not to replace an older one. Some services want to know this when
                the upload begins, others when it ends.
        """
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
    def max_put_bytes(self) -> int:
        """Larger objects are sent in parts."""
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
