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
long for a small request. What an answer means stands in `_meaning_of`, nowhere else.

An account with a hierarchical namespace lists its directories as empty blobs, and says so in their
metadata: they are no files.
"""

import asyncio
import base64
import io
import secrets
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

import aiohttp
from yarl import URL

from lance_stream.storage.azure_authorization import (
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

_TRY_AGAIN_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_TRY_AGAIN_CODES: Final = frozenset(
    {"PendingCopyOperation", "Md5Mismatch", "Crc64Mismatch", "OperationTimedOut", "ServerBusy"}
)
_TAKEN_CODES: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})
_NO_CONTAINER_CODES: Final = frozenset(
    {"ContainerNotFound", "FilesystemNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
)
_DIRECTORY_HEADERS: Final = {"x-ms-meta-hdi_isfolder": "true", "x-ms-resource-type": "directory"}


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


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


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
        return _bytes_of(answer, start, stop)

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes of an object, and its size; see `ObjectRequests.get_end`."""
        first = await self._get(key, _range(0, max(num_bytes, 1)))
        if first.status == 416:
            # Empty; that it is no directory, this answer does not say.
            return b"", (await self.head(key)).size_bytes
        size = _size_of(first)
        start = max(size - num_bytes, 0)
        if start == 0 or num_bytes == 0:
            return _bytes_of(first, 0, max(num_bytes, 1))[start:], size
        unchanged = {"If-Match": first.headers["ETag"]}
        last = await self._get(key, {**_range(start, size), **unchanged})
        return _bytes_of(last, start, size), size

    async def head(self, key: str) -> ObjectInfo:
        """Return what is said of an object; see `ObjectRequests.head`."""
        answer = await self._send(self._blob("HEAD", key))
        _refuse_directory(answer)
        headers = answer.headers
        return ObjectInfo(
            key,
            int(headers["Content-Length"]),
            _seconds(headers["Last-Modified"]),
            _etag(headers.get("Content-MD5"), headers.get("ETag")),
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
        return _page(await self._send(BlobRequest("GET", self._container_path, query)))

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
        except _TakenError:
            return False
        return True

    async def _get(self, key: str, headers: Mapping[str, str]) -> _Answer:
        request = self._blob("GET", key)
        request.headers.update(headers)
        answer = await self._send(request, allowed=(416,) if "x-ms-range" in headers else ())
        _refuse_directory(answer)
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

    async def _send(self, request: BlobRequest, allowed: tuple[int, ...] = ()) -> _Answer:
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
                answer = _Answer(response.status, response.headers, await response.read())
        except aiohttp.ClientConnectorCertificateError as error:
            raise RefusedError(
                f"the certificate of {self._origin} is not trusted: {error.certificate_error}"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # Not as the cause: what aiohttp says may hold the URL, and that a signature.
            raise TryAgainError(_said(error)) from None
        if answer.status < 300 or answer.status in allowed:
            return answer
        raise _meaning_of(answer, request, self._container)


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


class _TakenError(RefusedError):
    """The blob is there, or not the one that was meant."""


def quote_block(name: bytes) -> str:
    """Return a block's id as the service wants it: base64."""
    return base64.b64encode(name).decode()


def _meaning_of(answer: _Answer, request: BlobRequest, container: str) -> Exception:
    """Return what an answer other than a good one means."""
    status, code = answer.status, _code(answer)
    said = f"{status} {code}".strip()
    number = answer.headers.get("x-ms-request-id")
    told = f"{said} (request {number})" if number else said
    if status in _TRY_AGAIN_STATUS or code in _TRY_AGAIN_CODES:
        return TryAgainError(told, _after_seconds(answer))
    if code == "ResourceNotFound":
        return RefusedError(
            f"{told}: there is no container {container!r}, or nobody may read it without "
            "credentials"
        )
    if code in _NO_CONTAINER_CODES or (status == 404 and "restype" in request.query):
        return RefusedError(
            f"{told}: there is no container {container!r}. Create it, or correct the URI"
        )
    if status == 404:
        return MissingError(told)
    if status in (409, 412) and code in _TAKEN_CODES:
        return _changed(request, told)
    if code == "InvalidBlockList":
        return _changed(request, told)
    return RefusedError(f"{told}: {_WAYS_OUT.get(code) or _way_out(status)}")


def _changed(request: BlobRequest, told: str) -> Exception:
    if "If-None-Match" in request.headers:
        return _TakenError(told)
    if "If-Match" in request.headers or request.query.get("comp") == "blocklist":
        return TryAgainError(f"{told}: another writer was there meanwhile")
    return RefusedError(f"{told}: a directory may be there, or a policy keeps the blob as it is")


_LEASED = "another program holds a lease on the blob: let it end, or break it"
_WAYS_OUT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseLost"), _LEASED),
    "AuthenticationFailed": (
        "the credentials are wrong or have ended, or this machine's clock is. Correct account_key "
        "or sas_token"
    ),
    "KeyBasedAuthenticationNotPermitted": (
        "the account takes no account keys. Give tenant_id, client_id and client_secret, or none "
        "of them for the identity of this machine"
    ),
    "AuthorizationPermissionMismatch": (
        "the identity may not do this. Give it the role Storage Blob Data Contributor"
    ),
    "AuthorizationFailure": (
        "the credentials are wrong, or the account's network rules keep this machine out"
    ),
    "NoAuthenticationInformation": (
        "nobody may do this without credentials. Give account_key, sas_token or an identity"
    ),
    "PublicAccessNotPermitted": (
        "the account lets nobody in without credentials. Give account_key, sas_token or an identity"
    ),
    "BlobImmutableDueToPolicy": "a policy of the container forbids to change or delete blobs",
    "InvalidResourceName": (
        "the service allows no such name. A container's has 3 to 63 lower-case letters, digits and "
        "hyphens"
    ),
    "InvalidBlobType": "a page or append blob of that name is there: delete it",
    "InvalidBlobOrBlock": (
        "another program left blocks of that name, whose ids have another length: they go after a "
        "week, or with a small blob that is written there"
    ),
}
"""The way out of what the service refuses, by its code."""


def _way_out(status: int) -> str:
    if status in (401, 403):
        return "the credentials do not allow it. Check account_key, sas_token or the identity"
    if 300 <= status < 400:
        return "the endpoint sends requests elsewhere: correct the storage option endpoint"
    return "the service does not take this request"


def _code(answer: _Answer) -> str:
    """Return the service's name of an error, which a HEAD has in a header only."""
    if code := answer.headers.get("x-ms-error-code"):
        return code
    try:
        return ElementTree.fromstring(answer.body).findtext("Code") or ""
    except ElementTree.ParseError:
        return ""


def _after_seconds(answer: _Answer) -> float | None:
    after = answer.headers.get("Retry-After", "")
    return float(after) if after.isdecimal() else None


def _said(error: BaseException) -> str:
    """Return what went wrong on the way, without the URL."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"an answer that is no HTTP ({type(error).__name__})"
    if isinstance(error, TimeoutError):
        return f"no answer in time ({type(error).__name__})"
    return f"{type(error).__name__}: {error}"


def _range(start: int, stop: int | None) -> dict[str, str]:
    return {"x-ms-range": f"bytes={start}-{'' if stop is None else stop - 1}"}


def _bytes_of(answer: _Answer, start: int, stop: int | None) -> bytes:
    """Return the bytes of a range out of the answer, which may be of the whole blob.

    Raises:
        TryAgainError: Bytes are missing, or are others.
    """
    if answer.status == 416:
        return b""
    if answer.status != 206:
        return answer.body[start:stop]
    size = _size_of(answer)
    wanted = max(min(size if stop is None else stop, size) - start, 0)
    said = answer.headers["Content-Range"]
    if len(answer.body) != wanted or (wanted and not said.startswith(f"bytes {start}-")):
        raise TryAgainError(f"{len(answer.body)} bytes ({said}) in place of {wanted} from {start}")
    return answer.body


def _size_of(answer: _Answer) -> int:
    """Return the size of the blob that an answer is a range of."""
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if answer.status == 206 and not total.isdecimal():
        raise TryAgainError("a range of a blob whose size is not told")
    return int(total) if answer.status == 206 else len(answer.body)


def _refuse_directory(answer: _Answer) -> None:
    for name, value in _DIRECTORY_HEADERS.items():
        if answer.headers.get(name, "").lower() == value:
            raise MissingError("it is a directory")


def _page(answer: _Answer) -> Page:
    try:
        root = ElementTree.fromstring(answer.body)
    except ElementTree.ParseError:
        raise TryAgainError("a listing that is no XML") from None
    blobs = (_listed(each) for each in root.iterfind("Blobs/Blob"))
    return Page([each for each in blobs if each is not None], root.findtext("NextMarker") or None)


def _listed(blob: Any) -> ObjectInfo | None:
    """Return a blob of a listing; None for a directory."""
    if blob.findtext("Metadata/hdi_isfolder", "").lower() == "true":
        return None
    if blob.findtext("Properties/ResourceType", "").lower() == "directory":
        return None
    name = blob.find("Name")
    key = unquote(name.text) if name.get("Encoded") == "true" else name.text
    return ObjectInfo(
        key,
        int(blob.findtext("Properties/Content-Length")),
        _seconds(blob.findtext("Properties/Last-Modified")),
        _etag(blob.findtext("Properties/Content-MD5"), blob.findtext("Properties/Etag")),
    )


def _etag(content_md5: str | None, etag: str | None) -> str:
    """Return what tells one content from another: its MD5 in hex, if the service has it."""
    if content_md5:
        return base64.b64decode(content_md5).hex()
    return (etag or "").strip('"')


def _seconds(date: str) -> float:
    when: datetime = parsedate_to_datetime(date)
    return when.timestamp()
