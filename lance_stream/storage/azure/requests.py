"""Azure Blob Storage, by its REST interface: one HTTP request a call.

    get             Get Blob with x-ms-range           416 is an empty answer
    get_end         Get Blob of as many bytes from the start, which tells the size; of the end, if
                    that was not all. The service knows no range that counts from the end.
    head            Get Blob Properties
    put             Put Blob; once: If-None-Match: *   409 BlobAlreadyExists is "taken"
    list_page       List Blobs, sorted by name
    delete, copy    Delete Blob, Copy Blob
    upload          Put Block for each part, Put Block List with the condition

The requests are sent by aiohttp, which adlfs brings, not by its client of the service: that one
tries again by itself, within a download too, asks twice for an empty blob, and takes four times as
long for a small request. What an answer means stands in `answers`.

An account with a hierarchical namespace lists its directories as empty blobs, and says so in their
metadata: they are no files.
"""

import asyncio
import base64
import io
import secrets
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from lance_stream.storage.azure.answers import (
    Answer,
    TakenError,
    bytes_of,
    etag_of,
    meaning_of,
    page_of,
    refuse_directory,
    seconds_of,
    size_of,
)
from lance_stream.storage.azure.authorization import (
    Authorization,
    BlobRequest,
    Credentials,
    date_and_version,
)
from lance_stream.storage.object_requests import (
    Data,
    MissingError,
    ObjectInfo,
    Page,
    RefusedError,
    TryAgainError,
    Upload,
)
from lance_stream.storage.retries import SLOWEST_BYTES_PER_SECOND

# Larger bodies are handed over as files: aiohttp sends those piece by piece.
_PIECEMEAL_BYTES: Final = 1 << 20
BLOBS_A_PAGE: Final = 5000
_COPY_POLL_SECONDS: Final = 0.25


class Service(Protocol):
    """What the driver has to know of its settings."""

    @property
    def endpoint(self) -> str:
        """The service's URL, without "/" at the end."""
        ...

    @property
    def credentials(self) -> Credentials:
        """Whose requests they are."""
        ...

    @property
    def connect_seconds(self) -> float:
        """How long it may take to reach the service."""
        ...

    @property
    def request_seconds(self) -> float:
        """How long a request may take."""
        ...

    @property
    def verify_certificates(self) -> bool:
        """Whether the service has to prove who it is."""
        ...

    @property
    def proxy(self) -> str | None:
        """The URL of the proxy that requests go through; None for what the environment says."""
        ...


class AzureRequests:
    """The requests that one container answers.

    Args:
        service: How the service is reached.
        container: The container.
    """

    def __init__(self, service: Service, container: str) -> None:
        endpoint = urlsplit(service.endpoint)
        self._origin = f"{endpoint.scheme}://{endpoint.netloc}"
        self._container_path = f"{endpoint.path}/{quote(container, safe='$')}"
        self._container = container
        self._proxy = service.proxy
        self._request_seconds = service.request_seconds
        self._connect_seconds = service.connect_seconds
        self._authorization: Authorization = service.credentials.connect()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=service.verify_certificates, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=True,
        )
        if hasattr(self._session, "_retry_connection"):
            # Else a PUT whose answer is lost is sent a second time unseen.
            self._session._retry_connection = False

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of a range; see `ObjectRequests.get`."""
        if stop is not None and stop <= start:
            await self.head(key)
            return b""
        if (start, stop) == (0, None):
            return (await self._get(key, {})).body
        answer = await self._get(key, _range(start, stop))
        if answer.status == 416 and start == 0:
            # Empty; that it is no directory, this answer does not say.
            await self.head(key)
        return bytes_of(answer, start, stop)

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes of an object, and its size; see `ObjectRequests.get_end`."""
        first = await self._get(key, _range(0, max(num_bytes, 1)))
        if first.status == 416:
            # Empty; that it is no directory, this answer does not say.
            return b"", (await self.head(key)).size_bytes
        size = size_of(first)
        start = max(size - num_bytes, 0)
        if start == 0 or num_bytes == 0:
            return bytes_of(first, 0, max(num_bytes, 1))[start:], size
        unchanged = {"If-Match": first.headers["ETag"]}
        last = await self._get(key, {**_range(start, size), **unchanged})
        return bytes_of(last, start, size), size

    async def head(self, key: str) -> ObjectInfo:
        """Return what is said of an object; see `ObjectRequests.head`."""
        answer = await self._send(self._blob("HEAD", key))
        refuse_directory(answer)
        headers = answer.headers
        return ObjectInfo(
            key,
            int(headers["Content-Length"]),
            seconds_of(headers["Last-Modified"]),
            etag_of(headers.get("Content-MD5"), headers.get("ETag")),
        )

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write an object; see `ObjectRequests.put`."""
        request = self._blob("PUT", key, data=data)
        request.headers["x-ms-blob-type"] = "BlockBlob"
        return await self._create(request, once=once)

    async def list_page(
        self, prefix: str, *, token: str | None, only_here: bool, limit: int | None
    ) -> Page:
        """Return some of the objects whose keys begin with a prefix."""
        query = {
            "restype": "container",
            "comp": "list",
            "include": "metadata",
            **({"prefix": prefix} if prefix else {}),
            **({"delimiter": "/"} if only_here else {}),
            **({"marker": token} if token else {}),
            "maxresults": str(min(limit or BLOBS_A_PAGE, BLOBS_A_PAGE)),
        }
        return page_of(await self._send(BlobRequest("GET", self._container_path, query)))

    async def delete(self, key: str) -> None:
        """Delete an object; see `ObjectRequests.delete`. Snapshots of it go along."""
        request = self._blob("DELETE", key)
        request.headers["x-ms-delete-snapshots"] = "include"
        try:
            await self._send(request)
        except MissingError:
            return

    async def copy(self, source: str, target: str) -> None:
        """Copy an object; see `ObjectRequests.copy`.

        Within an account the service has copied when it answers; else its word is waited for.
        """
        request = self._blob("PUT", target)
        request.headers["x-ms-copy-source"] = (
            f"{self._origin}{self._path(source)}{self._authorization.source_query()}"
        )
        answer = await self._send(request)
        deadline = asyncio.get_running_loop().time() + self._request_seconds
        while (status := answer.headers.get("x-ms-copy-status", "success")) == "pending":
            if asyncio.get_running_loop().time() > deadline:
                raise TryAgainError(f"the copy is pending after {self._request_seconds:g} s")
            await asyncio.sleep(_COPY_POLL_SECONDS)
            answer = await self._send(self._blob("HEAD", target))
        if status != "success":
            said = answer.headers.get("x-ms-copy-status-description", "")
            raise TryAgainError(f"the copy ended as {status!r} {said}".rstrip())

    async def start_upload(self, key: str, *, once: bool) -> Upload:
        """Begin to send a large object in parts: nothing is sent yet."""
        return BlockUpload(self, key, once=once)

    async def close(self) -> None:
        """Let connections go."""
        await self._session.close()
        await self._authorization.close()

    async def _put_block(self, key: str, block: str, data: Data) -> None:
        await self._send(self._blob("PUT", key, {"comp": "block", "blockid": block}, data))

    async def _put_block_list(self, key: str, blocks: list[str], *, once: bool) -> bool:
        names = "".join(f"<Latest>{block}</Latest>" for block in blocks)
        data = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{names}</BlockList>'.encode()
        return await self._create(self._blob("PUT", key, {"comp": "blocklist"}, data), once=once)

    async def _create(self, request: BlobRequest, *, once: bool) -> bool:
        """Send what makes a blob; return False where it was to be made once and is there."""
        if not once:
            await self._send(request)
            return True
        request.headers["If-None-Match"] = "*"
        try:
            await self._send(request)
        except TakenError:
            return False
        return True

    async def _get(self, key: str, headers: Mapping[str, str]) -> Answer:
        request = self._blob("GET", key)
        request.headers.update(headers)
        answer = await self._send(request, allowed=(416,) if "x-ms-range" in headers else ())
        refuse_directory(answer)
        return answer

    def _path(self, key: str) -> str:
        return f"{self._container_path}/{quote(key, safe='/~')}"

    def _blob(
        self, method: str, key: str, query: dict[str, str] | None = None, data: Data = b""
    ) -> BlobRequest:
        return BlobRequest(method, self._path(key), query or {}, {}, data)

    def _timeout(self, num_bytes: int) -> aiohttp.ClientTimeout:
        """Return how long the service may be silent, which it is while it takes some bytes."""
        silence = self._request_seconds + num_bytes / SLOWEST_BYTES_PER_SECOND
        return aiohttp.ClientTimeout(
            total=None, sock_connect=self._connect_seconds, sock_read=silence
        )

    async def _send(self, request: BlobRequest, allowed: tuple[int, ...] = ()) -> Answer:
        """Return the answer to a request, if it is a good one or of an allowed status."""
        request.headers.update(date_and_version())
        if len(request.data):
            request.headers["Content-Type"] = "application/octet-stream"
        await self._authorization.authorize(request)
        is_large = len(request.data) > _PIECEMEAL_BYTES
        try:
            async with self._session.request(
                request.method,
                URL(self._origin + request.target, encoded=True),
                headers=request.headers,
                data=io.BytesIO(request.data) if is_large else (request.data or None),
                skip_auto_headers=("Content-Type", "Accept-Encoding"),
                allow_redirects=False,
                timeout=self._timeout(len(request.data)),
                proxy=self._proxy,
            ) as response:
                answer = Answer(response.status, response.headers, await response.read())
        except aiohttp.ClientConnectorCertificateError as error:
            raise RefusedError(
                f"the certificate of {self._origin} is not trusted: {error.certificate_error}"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # Not as the cause: what aiohttp says may hold the URL, and that a signature.
            raise TryAgainError(_said(error)) from None
        if answer.status < 300 or answer.status in allowed:
            return answer
        raise meaning_of(answer, request, self._container)


class BlockUpload:
    """A blob that is sent in blocks.

    Blocks belong to the blob's name, not to an upload: their ids begin with chance, so that two
    writers of one name never mix, and are of one length, as the service wants it. Those that no
    list names are forgotten when the blob is made, or after a week.
    """

    part_bytes = 1
    max_parts_at_once = 4

    def __init__(self, requests: AzureRequests, key: str, *, once: bool) -> None:
        self._requests = requests
        self._key = key
        self._once = once
        self._prefix = secrets.token_bytes(12)
        self._last: int | None = None

    async def put_part(self, number: int, data: Data) -> None:
        """Send a part; see `Upload.put_part`."""
        await self._requests._put_block(self._key, self._block(number), data)

    async def finish(self, number: int, data: Data) -> bool:
        """Send the last part, and make the blob of all; see `Upload.finish`."""
        if self._last != number:
            await self.put_part(number, data)
            self._last = number
        blocks = [self._block(each) for each in range(number + 1)]
        return await self._requests._put_block_list(self._key, blocks, once=self._once)

    async def abort(self) -> None:
        """Do nothing: blocks that no list names are invisible, and the service forgets them."""

    def _block(self, number: int) -> str:
        return quote_block(self._prefix + number.to_bytes(4, "big"))


def quote_block(name: bytes) -> str:
    """Return a block's id as the service wants it: base64."""
    return base64.b64encode(name).decode()


def _said(error: BaseException) -> str:
    """Return what went wrong on the way, without the URL."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"an answer that is no HTTP ({type(error).__name__})"
    if isinstance(error, TimeoutError):
        return f"no answer in time ({type(error).__name__})"
    return f"{type(error).__name__}: {error}"


def _range(start: int, stop: int | None) -> dict[str, str]:
    return {"x-ms-range": f"bytes={start}-{'' if stop is None else stop - 1}"}
