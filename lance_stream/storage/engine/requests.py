"""One HTTP request per call to one bucket, through obstore.

obstore's own retries are off, except for uploads in parts: since the object's name is new, it is
safe to repeat each part and the request that completes the object.

    get             GET of a range; 416 and a response with the whole object are not errors here
    get_end         GET of a suffix. Azure does not support it: GET of the same number of bytes from
                    the start, which returns the size, then GET of the end if there is more
    put             one PUT for any size; `once`: with the service's condition
    list_pages      pages of up to 1,000 names, as the service returns them
    open_upload     parts of 8 MiB, four at a time

Settings that obstore would read from the environment are always passed explicitly, so that they
never mix with the user's.

A process that was forked from one that has used obstore would wait forever, so it is refused.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal

import obstore
import obstore.exceptions
from cachetools import LRUCache

from lance_stream.environment import MACHINE
from lance_stream.errors import (
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.storage.engine.responses import (
    NameTakenError,
    NoSuchRangeError,
    NotAcceptedError,
    NotImplementedResponseError,
    classify_error,
)
from lance_stream.storage.engine.service import ObjectService
from lance_stream.storage.objects.object_requests import (
    PART_BYTES,
    Data,
    MissingError,
    ObjectInfo,
    Pages,
    RefusedError,
    RequestPolicy,
    TryAgainError,
    Upload,
)
from lance_stream.storage.objects.retries import SLOWEST_BYTES_PER_SECOND, Attempts

NAMES_A_PAGE: Final = 1000

_PARTS_AT_ONCE: Final = 4
_MAX_CREATED: Final = 256
_MAX_PARTS: Final = 10_000
_For = Literal["reads", "writes", "uploads"]
"""The kinds of requests: each has its own timeouts and connections."""

_NEVER: Final = "7days"  # the retry loop limits the time of an attempt


class EngineRequests:
    """The requests to one bucket or container; see `ObjectRequests`.

    Args:
        service: The settings of the service.
        container: The bucket or container.
    """

    def __init__(self, service: ObjectService, container: str) -> None:
        _refuse_forked_process()
        self._service = service
        self._container = container
        self._dialect = service.dialect
        self._credentials = service.credentials()
        self._creates_once = service.is_sure_to_create_once()
        self._stores: dict[_For, Any] = {}
        # ETags and MD5s of objects that this process created: not all services list MD5s.
        self._created: LRUCache[str, tuple[str, str]] = LRUCache(_MAX_CREATED)
        self.store("reads")  # invalid settings are an error before the first request

    async def get(self, key: str, start: int, stop: int | None) -> Data:
        """Return the bytes of a range; see `ObjectRequests.get`."""
        if stop is not None and stop <= start:
            await self.head(key)
            return b""
        span = {"offset": start} if stop is None else (start, stop)
        try:
            return (await self._get(key, None if (start, stop) == (0, None) else span))[0]
        except NoSuchRangeError as error:
            if error.kind == "beyond the end":
                return b""
            # The service does not support ranges, or the object is empty.
            return (await self._get(key, None))[0][start:stop]

    async def get_end(self, key: str, num_bytes: int) -> tuple[Data, int]:
        """Return the last bytes of an object, and its size; see `ObjectRequests.get_end`."""
        try:
            if self._service.knows_suffixes:
                data, size = await self._get(key, {"suffix": max(num_bytes, 1)})
            else:
                data, size = await self._get_end_in_two(key, num_bytes)
        except NoSuchRangeError as error:
            if error.kind == "beyond the end":
                return b"", 0
            data, size = await self._get(key, None)
        return data[len(data) - min(num_bytes, len(data)) :], size

    async def head(self, key: str) -> ObjectInfo:
        """Return an object's properties; see `ObjectRequests.head`."""
        return self.info(await self._send(obstore.head_async, key))

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write an object; see `ObjectRequests.put`.

        A service that ignores the condition responds as if the create had succeeded. Unless the
        settings state that the service supports conditions, the first object that a process creates
        once is therefore created again, which must fail.
        """
        if not once:
            await self._put(key, data, "overwrite")
            return True
        is_created = await self._create(key, data)
        if self._creates_once is None:
            if is_created and await self._create(key, data):
                self._creates_once = False
                raise UnsupportedFeatureError(
                    f"{self._no_condition('ignores the condition of a')}. Only the file {key!r} "
                    "was written, and may have replaced an older one"
                )
            self._creates_once = True
        return is_created

    def list_pages(self, prefix: str, *, is_flat: bool, limit: int | None) -> Pages:
        """Return the objects whose keys begin with a prefix; see `ObjectRequests.list_pages`."""
        return _Listing(self, prefix, is_flat=is_flat, limit=limit)

    async def delete(self, key: str) -> None:
        """Delete an object; see `ObjectRequests.delete`."""
        with suppress(MissingError):
            await self._send(obstore.delete_async, key)

    async def copy(self, source: str, target: str) -> None:
        """Copy an object; see `ObjectRequests.copy`."""
        await self._send(obstore.copy_async, source, target)

    def open_upload(self, key: str) -> Upload:
        """Start sending a large object in parts; see `ObjectRequests.open_upload`."""
        return _PartsUpload(self, key)

    async def close(self) -> None:
        """Drop the connections."""
        self._stores.clear()

    def classify_error(self, error: Exception, number: int) -> Exception:
        """Return the error of `object_requests` for an error of obstore.

        Args:
            error: The error that was raised.
            number: The number that `ready` returned. Rejected credentials are renewed once.
        """
        if isinstance(error, RefusedError | TryAgainError | MissingError):
            return error
        meaning = classify_error(error, self._dialect)
        if isinstance(meaning, NotAcceptedError) and self._credentials.rejected(number):
            return TryAgainError(str(meaning))
        return meaning

    def info(self, meta: Mapping[str, Any]) -> ObjectInfo:
        """Return an object's properties, with the MD5 if this process created it."""
        key, etag = str(meta["path"]), _unquoted(meta["e_tag"])
        created, md5 = self._created.get(key, ("", ""))
        modified: float = meta["last_modified"].timestamp()
        return ObjectInfo(
            key, int(meta["size"]), modified, md5 if etag and etag == created else etag
        )

    async def ready(self) -> int:
        """Renew the credentials for a request if necessary.

        Returns:
            The number of the credentials; see `Credentials.number`.

        Raises:
            RefusedError: There are no credentials.
            TryAgainError: They are temporarily unavailable.
        """
        await self._credentials.ready()
        return self._credentials.number

    def accepted(self, number: int) -> None:
        """Record that the service accepted credentials."""
        self._credentials.accepted(number)

    def attempts_at(self, what: str) -> Attempts:
        """Return a retry loop for operations that obstore does not repeat."""
        return Attempts(self._service.retry_policy, what, self._container, "try again")

    def store(self, purpose: _For) -> Any:
        """Return obstore's store, which is created on first use."""
        if purpose not in self._stores:
            self._stores[purpose] = self._open(purpose)
        return self._stores[purpose]

    @property
    def resumes_listings(self) -> bool:
        """Whether a listing can begin after a name."""
        return self._service.resumes_listings

    async def _get(self, key: str, span: Any, **options: Any) -> tuple[Data, int]:
        """Return the bytes of a GET, and the object's size."""
        options = {**options, **({} if span is None else {"range": span})}
        result = await self._send(obstore.get_async, key, options=options)
        size = int(result.meta["size"])
        return await self._body(result, span, size), size

    async def _get_end_in_two(self, key: str, num_bytes: int) -> tuple[Data, int]:
        span = (0, max(num_bytes, 1))
        result = await self._send(obstore.get_async, key, options={"range": span})
        size, etag = int(result.meta["size"]), result.meta["e_tag"]
        if size <= span[1] or num_bytes == 0:
            return await self._body(result, span, size), size
        unchanged = {} if etag is None else {"if_match": etag}
        try:
            return await self._get(key, (size - num_bytes, size), **unchanged)
        except NameTakenError as error:
            raise TryAgainError(f"{error}: the object was replaced in the meantime") from None

    async def _body(self, result: Any, span: Any, size: int) -> Data:
        """Return the bytes of a response, if they are the requested ones."""
        try:
            data = memoryview(await result.bytes_async())
        except Exception as error:
            raise classify_error(error, self._dialect) from None
        start, stop = result.range
        if len(data) != stop - start or (start, stop) != _bounds(span, size):
            raise TryAgainError(f"{len(data):,} bytes instead of the range {start:,} to {stop:,}")
        return data

    async def _create(self, key: str, data: Data) -> bool:
        """Create an object; return False if its name is taken."""
        if self._creates_once is False:
            raise UnsupportedFeatureError(self._no_condition("is configured to have no"))
        try:
            await self._put(key, data, "create")
        except NameTakenError:
            return False
        except NotImplementedResponseError:
            raise UnsupportedFeatureError(self._no_condition("does not support a")) from None
        return True

    async def _put(self, key: str, data: Data, mode: str) -> None:
        try:
            response = await self._send(
                obstore.put_async, key, data, purpose="writes", mode=mode, use_multipart=False
            )
        except MissingError as error:
            raise RefusedError(f"{error}: {self._dialect.remedies['404']}") from None
        if mode == "create":
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
            self._created[key] = (_unquoted(response["e_tag"]), md5)

    async def _send(
        self, request: Any, *arguments: Any, purpose: _For = "reads", **named: Any
    ) -> Any:
        """Send one request; raise the errors that `ObjectRequests` documents."""
        number = await self.ready()
        try:
            response = await request(self.store(purpose), *arguments, **named)
        except Exception as error:
            # obstore's text may contain secrets
            raise self.classify_error(error, number) from None
        self.accepted(number)
        return response

    def _open(self, purpose: _For) -> Any:
        retry_policy = self._service.retry_policy
        options = {
            **self._service.client_options(),
            **_timeouts(purpose, retry_policy),
            "connect_timeout": timedelta(seconds=retry_policy.connect_seconds),
        }
        try:
            return self._service.open(
                self._container,
                client_options=options,
                retry_config=_retries(retry_policy) if purpose == "uploads" else _no_retries(),
                credential_provider=self._credentials,
            )
        except obstore.exceptions.BaseError as error:
            reason = str(error).partition("\n")[0][:300]
            raise InvalidInputError(f"obstore does not accept these settings: {reason}") from None

    def _no_condition(self, problem: str) -> str:
        return (
            f"the service of the bucket {self._container!r} {problem} conditional put "
            "(If-None-Match), without which two writers could overwrite each other's versions. No "
            "version was published. Publish versions in an external manifest store (storage option "
            "manifest_store)"
        )


class _Listing(Pages):
    """Pages of a listing. After an error, it resumes after the last name, or starts over."""

    def __init__(
        self, requests: EngineRequests, prefix: str, *, is_flat: bool, limit: int | None
    ) -> None:
        self._requests = requests
        self._prefix = prefix
        self._is_flat = is_flat
        self._chunk_size = min(limit or NAMES_A_PAGE, NAMES_A_PAGE)
        self._last: str | None = None
        self._num_listed = 0
        self._stream: Any = None

    async def next(self) -> Sequence[ObjectInfo] | None:
        """Return the next objects; None after the last ones."""
        number = await self._requests.ready()
        stream, self._stream = self._stream, None
        try:
            stream = stream or self._begin()
            chunk = await anext(stream)
        except StopAsyncIteration:
            return await self._list_after_full_page()
        except Exception as error:
            meaning = self._requests.classify_error(error, number)
            if isinstance(meaning, MissingError):
                meaning = RefusedError(f"{meaning}: there is no such bucket")
            raise meaning from None
        self._requests.accepted(number)
        self._stream = stream
        self._num_listed += len(chunk)
        if chunk and self._requests.resumes_listings:
            self._last = chunk[-1]["path"]
        return [self._requests.info(item) for item in chunk if self._is_listed(item["path"])]

    def _begin(self) -> Any:
        """Return obstore's stream of the remaining objects."""
        offset = {} if self._last is None else {"offset": self._last}
        return obstore.list(
            self._requests.store("reads"),
            self._prefix.rstrip("/") or None,
            chunk_size=self._chunk_size,
            **offset,
        )

    async def _list_after_full_page(self) -> Sequence[ObjectInfo] | None:
        """Return the objects after a full page that does not state whether the listing continues.

        Services that only support the older ListObjects do not state where it continues.
        """
        if self._last is None or not self._num_listed or self._num_listed % NAMES_A_PAGE:
            return None
        last, self._num_listed = self._last, 0
        more = await self.next()
        if more and more[0].key <= last:
            raise RefusedError(
                "the listing starts over instead of continuing: the service does not support "
                "ListObjectsV2"
            )
        return more

    def _is_listed(self, key: str) -> bool:
        return key.startswith(self._prefix) and not (
            self._is_flat and "/" in key[len(self._prefix) :]
        )


class _PartsUpload(Upload):
    """An object that is sent in parts, by obstore's writer.

    obstore repeats its requests, except the one that begins an upload if its response is lost,
    because the upload may have begun. Beginning another upload is harmless, so this class does; it
    keeps the first parts until the upload has begun.
    """

    def __init__(self, requests: EngineRequests, key: str) -> None:
        self._requests = requests
        self._key = key
        self._writer = self._open()
        self._beginning: list[Data] | None = []
        self._size_bytes = 0

    def _open(self) -> Any:
        return obstore.open_writer_async(
            self._requests.store("uploads"),
            self._key,
            buffer_size=PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    async def write(self, part: Data) -> None:
        """Send a part; see `Upload.write`."""
        self._size_bytes += len(part)
        if self._size_bytes > PART_BYTES * _MAX_PARTS:
            raise RefusedError(
                f"the object would have more than {PART_BYTES * _MAX_PARTS:,} bytes: write smaller "
                "files (max_bytes_per_file)"
            )
        if self._beginning is None:
            await self._send([part])
            return
        self._beginning.append(part)
        await self._begin(part, self._beginning)
        if len(self._beginning) > 1:  # the first one has been sent, so the upload has begun
            self._beginning = None

    async def _begin(self, part: Data, beginning: Sequence[Data]) -> None:
        """Send a part; without a response, begin another upload and send all parts again."""
        attempts, parts = self._requests.attempts_at("the beginning of an upload"), [part]
        while True:
            try:
                await self._send(parts)
                return
            except TryAgainError as error:
                try:
                    wait = attempts.seconds_until_next(error)
                except StoreUnavailableError:
                    raise error from None
            await MACHINE.sleep_async(wait)
            self._writer, parts = self._open(), list(beginning)

    async def _send(self, parts: Iterable[Data]) -> None:
        number = await self._requests.ready()
        try:
            for part in parts:
                await self._writer.write(part)
        except Exception as error:
            raise self._requests.classify_error(error, number) from None

    async def finish(self) -> None:
        """Make the object visible; see `Upload.finish`."""
        number = await self._requests.ready()
        try:
            await self._writer.close()
        except Exception as error:
            meaning = self._requests.classify_error(error, number)
            if await self._exists():
                return
            raise meaning from None

    async def abort(self) -> None:
        """Discard the parts; see `Upload.abort`."""
        with suppress(Exception):
            await self._writer.__aexit__(RuntimeError, RuntimeError("aborted"), None)

    async def _exists(self) -> bool:
        """Return whether a request whose response was lost has completed the object."""
        try:
            return (await self._requests.head(self._key)).size_bytes == self._size_bytes
        except (MissingError, RefusedError, TryAgainError):
            return False


def _bounds(span: Any, size: int) -> tuple[int, int]:
    """Return the start and stop of a range in an object of a given size."""
    if span is None:
        return 0, size
    if isinstance(span, tuple):
        return span[0], min(span[1], size)
    return span.get("offset", max(size - span.get("suffix", 0), 0)), size


def _unquoted(etag: str | None) -> str:
    return (etag or "").strip('"')


def _timeouts(purpose: _For, retry_policy: RequestPolicy) -> dict[str, Any]:
    """Return the timeouts of an attempt that the retry loop does not set.

    A read times out if no data arrive for `request_seconds`. During a write nothing is received, so
    the retry loop limits writes by their size instead.
    """
    if purpose == "reads":
        return {"timeout": _NEVER, "read_timeout": timedelta(seconds=retry_policy.request_seconds)}
    if purpose == "writes":
        return {"timeout": _NEVER}
    seconds = retry_policy.request_seconds + PART_BYTES / SLOWEST_BYTES_PER_SECOND
    return {"timeout": timedelta(seconds=seconds)}


def _no_retries() -> dict[str, Any]:
    return {"max_retries": 0, "retry_timeout": timedelta(0)}


def _retries(retry_policy: RequestPolicy) -> dict[str, Any]:
    return {
        "max_retries": retry_policy.max_attempts - 1,
        "retry_timeout": timedelta(seconds=retry_policy.total_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=retry_policy.first_delay_seconds),
            "max_backoff": timedelta(seconds=retry_policy.max_delay_seconds),
            "base": 2,
        },
    }


_was_used = False
_is_forked = False


def _refuse_forked_process() -> None:
    """Record that this process uses obstore.

    Raises:
        InvalidInputError: This process was forked from one that has used obstore.
    """
    global _was_used
    if _is_forked:
        raise InvalidInputError(
            "this process was forked from one that has used an object store, so its requests would "
            "never be answered. Start processes with 'spawn' or 'forkserver' "
            "(multiprocessing.get_context), or before the first table is opened"
        )
    _was_used = True


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or _was_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
