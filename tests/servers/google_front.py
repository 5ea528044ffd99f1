"""A front of fake-gcs-server that has what it lacks of Google's storage: the XML interface.

    PUT /bucket/object              writes, with the condition x-goog-if-generation-match; uploads
                                    in parts (?uploads, ?partNumber, ?uploadId); copies
                                    (x-goog-copy-source)
    GET /bucket?list-type=2         listings in pages, which may begin behind a name

obstore speaks this interface, and pylance. Everything else is passed on as it came. Whatever is
written goes on to the server in one request of its JSON interface, which knows the condition; what
is atomic there is atomic here. ETags are the MD5 in hex, as Google's XML interface has them.
"""

import asyncio
import base64
import threading
import uuid
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import aiohttp
from aiohttp import web
from yarl import URL

from tests.servers.buckets import Bucket
from tests.servers.fake_gcs import FakeGoogleServer

_PASSED_ON = ("range", "content-type", "accept", "accept-encoding")
_PASSED_BACK = ("content-type", "content-range", "last-modified", "etag", "x-goog-generation")
_PASSED_BACK += ("x-goog-stored-content-length", "x-goog-stored-content-encoding")


class GoogleFront:
    """The front of one server, while its context is open.

    Args:
        server: fake-gcs-server.

    Attributes:
        url: Where the front listens.
        names_a_page: So many names a page of a listing has.
    """

    names_a_page = 1000

    def __init__(self, server: FakeGoogleServer) -> None:
        self._server = server
        self._parts: dict[str, tuple[str, dict[int, bytes]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> "GoogleFront":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def num_uploads(self, bucket: str) -> int:
        """Return how many uploads to a bucket were begun, and neither finished nor dropped."""
        return sum(of == bucket for of, _ in self._parts.values())

    def new_bucket(self, url: str | None = None) -> Bucket:
        """Make a bucket, and tell how to get there.

        Args:
            url: Of a proxy before the front, if there is one.
        """
        bucket = self._server.new_bucket()
        endpoint = url or self.url
        options = {**bucket.storage_options, "google_base_url": endpoint}
        behind = {**bucket.fsspec_options, "endpoint_url": endpoint}
        return Bucket(bucket.name, bucket.uri, endpoint, options, behind)

    async def _open(self) -> None:
        self._client = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        query = request.query
        bucket, _, key = unquote(request.rel_url.raw_path[1:]).partition("/")
        if bucket not in ("storage", "download", "upload", "_internal"):
            if "list-type" in query:
                return await self._list(request, bucket)
            if key and ("uploads" in query or "uploadId" in query):
                return await self._upload_in_parts(request, bucket, key, body)
            if key and request.method == "PUT":
                return await self._put(request, bucket, key, body)
        return await self._pass_on(request, body)

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        async with self._client.request(
            request.method,
            URL(self._server.endpoint + request.rel_url.raw_path_qs, encoded=True),
            data=body,
            headers={name: request.headers[name] for name in _PASSED_ON if name in request.headers},
            allow_redirects=False,
        ) as answer:
            content = await answer.read()
            headers = {
                name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers
            }
            if "etag" in headers:
                headers["etag"] = f'"{_hex(headers["etag"])}"'
            if request.method == "HEAD":
                headers["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, body=content, headers=headers)

    async def _put(self, request: web.Request, bucket: str, key: str, body: bytes) -> web.Response:
        condition = request.headers.get("x-goog-if-generation-match")
        source = request.headers.get("x-goog-copy-source")
        if source is None:
            status, document = await self._write(bucket, key, body, condition)
        else:
            of_bucket, _, of_key = unquote(source).lstrip("/").partition("/")
            url = (
                f"{self._server.endpoint}/storage/v1/b/{of_bucket}/o/{quote(of_key, safe='')}"
                f"/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
            )
            status, document = await self._post(url, b"")
            document = document.get("resource", {})
        if status >= 400:
            return _error(status, of_bucket=source is None)
        headers = {"ETag": f'"{_hex(document.get("md5Hash", ""))}"'}
        headers["x-goog-generation"] = str(document.get("generation", ""))
        return web.Response(status=status, headers=headers, text="<CopyObjectResult/>")

    async def _list(self, request: web.Request, bucket: str) -> web.Response:
        query = request.query
        after = query.get("continuation-token") or query.get("start-after", "")
        parameters = {"prefix": query.get("prefix", ""), "startOffset": after}
        if "delimiter" in query:
            parameters["delimiter"] = query["delimiter"]
        async with self._client.get(
            f"{self._server.endpoint}/storage/v1/b/{bucket}/o", params=parameters
        ) as answer:
            if answer.status != 200:
                return _error(answer.status, of_bucket=True)
            document = await answer.json()
        items = [row for row in document.get("items", ()) if row["name"] > after]
        page = items[: int(query.get("max-keys", self.names_a_page))]
        root = ElementTree.Element("ListBucketResult")
        for record in page:
            of_object = ElementTree.SubElement(root, "Contents")
            for tag, text in (
                ("Key", record["name"]),
                ("LastModified", record["timeCreated"]),
                ("ETag", f'"{_hex(record.get("md5Hash", ""))}"'),
                ("Size", record["size"]),
            ):
                ElementTree.SubElement(of_object, tag).text = text
        for value in document.get("prefixes", ()):
            folder = ElementTree.SubElement(root, "CommonPrefixes")
            ElementTree.SubElement(folder, "Prefix").text = value
        is_cut = len(page) < len(items)
        ElementTree.SubElement(root, "IsTruncated").text = str(is_cut).lower()
        if is_cut:
            ElementTree.SubElement(root, "NextContinuationToken").text = page[-1]["name"]
        return web.Response(body=ElementTree.tostring(root), content_type="application/xml")

    async def _upload_in_parts(
        self, request: web.Request, bucket: str, key: str, body: bytes
    ) -> web.Response:
        upload = request.query.get("uploadId", "")
        if "uploads" in request.query:
            upload = uuid.uuid4().hex
            self._parts[upload] = (bucket, {})
            return _xml("InitiateMultipartUploadResult", Bucket=bucket, Key=key, UploadId=upload)
        if upload not in self._parts:
            return _error(404, code="NoSuchUpload")
        if request.method == "PUT":
            number = int(request.query["partNumber"])
            self._parts[upload][1][number] = body
            return web.Response(headers={"ETag": f'"{number}"'})
        _, parts = self._parts.pop(upload)
        if request.method == "DELETE":
            return web.Response(status=204)
        tags = [
            (element.tag.rpartition("}")[2], element.text)
            for element in ElementTree.fromstring(body).iter()
        ]
        data = b"".join(parts[int(text or 0)] for tag, text in tags if tag == "PartNumber")
        condition = request.headers.get("x-goog-if-generation-match")
        status, document = await self._write(bucket, key, data, condition)
        if status != 200:
            return _error(status, of_bucket=True)
        etag = f'"{_hex(document["md5Hash"])}"'
        answer = _xml("CompleteMultipartUploadResult", Bucket=bucket, Key=key, ETag=etag)
        answer.headers["x-goog-generation"] = str(document["generation"])
        return answer

    async def _write(
        self, bucket: str, key: str, data: bytes, condition: str | None
    ) -> tuple[int, dict[str, Any]]:
        url = (
            f"{self._server.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media"
            f"&name={quote(key, safe='')}"
        )
        return await self._post(
            url if condition is None else f"{url}&ifGenerationMatch={condition}", data
        )

    async def _post(self, url: str, data: bytes) -> tuple[int, dict[str, Any]]:
        async with self._client.post(
            URL(url, encoded=True), data=_pieces(data), headers={"Content-Length": str(len(data))}
        ) as answer:
            document = await answer.json(content_type=None)
            return answer.status, document if isinstance(document, dict) else {}


async def _pieces(data: bytes) -> Any:
    for start in range(0, len(data), 1 << 20):
        yield data[start : start + (1 << 20)]


def _hex(md5: str) -> str:
    """Return an MD5 in base64, which may be quoted, in hex."""
    try:
        return base64.b64decode(md5.strip('"'), validate=True).hex()
    except ValueError:
        return md5.strip('"')


def _error(status: int, *, of_bucket: bool = False, code: str = "") -> web.Response:
    codes = {404: "NoSuchBucket" if of_bucket else "NoSuchKey", 412: "PreconditionFailed"}
    answer = _xml("Error", Code=code or codes.get(status, "InternalError"), Message="said no")
    answer.set_status(status)
    return answer


def _xml(name: str, **elements: str) -> web.Response:
    root = ElementTree.Element(name)
    for tag, text in elements.items():
        ElementTree.SubElement(root, tag).text = text
    return web.Response(body=ElementTree.tostring(root), content_type="application/xml")
