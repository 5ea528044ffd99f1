"""A front of fake-gcs-server that has what it lacks of Google's storage: two more protocols.

    PUT /bucket/object              the XML interface's write, by which pylance commits, with its
      x-goog-if-generation-match    condition; its uploads in parts (?uploads, ?partNumber), and
      x-goog-copy-source            its copy
    POST /upload/...resumable       sessions as Google keeps them. The server behind takes a part
                                    that is sent again for a further one, and a question how much
                                    it has for the end of the object

Everything else is passed on as it came. Whatever is written goes on to the server in one request
of its JSON interface, which knows the condition; what is atomic there is atomic here.
"""

import asyncio
import json
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
    """

    def __init__(self, server: FakeGoogleServer) -> None:
        self._server = server
        self._sessions: dict[str, _Session] = {}
        self._parts: dict[str, dict[int, bytes]] = {}
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
        return sum(
            each.bucket == bucket and each.answer is None for each in self._sessions.values()
        )

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
        if bucket == "upload":
            if "session" in query:
                return await self._take_part(request, body)
            if query.get("uploadType") == "resumable":
                return self._begin_session(request)
        elif bucket not in ("storage", "download", "_internal") and key:
            if "uploads" in query or "uploadId" in query:
                return await self._upload_in_parts(request, bucket, key, body)
            if request.method == "PUT":
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
            said = await answer.read()
            headers = {
                name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers
            }
            if request.method == "HEAD":
                headers["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, body=said, headers=headers)

    async def _put(self, request: web.Request, bucket: str, key: str, body: bytes) -> web.Response:
        condition = request.headers.get("x-goog-if-generation-match")
        source = request.headers.get("x-goog-copy-source")
        if source is None:
            status, said = await self._write(bucket, key, body, condition)
        else:
            of_bucket, _, of_key = unquote(source).lstrip("/").partition("/")
            url = (
                f"{self._server.endpoint}/storage/v1/b/{of_bucket}/o/{quote(of_key, safe='')}"
                f"/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
            )
            status, said = await self._post(url, b"")
            said = said.get("resource", {})
        headers = {"ETag": f'"{said.get("etag", "")}"'}
        headers["x-goog-generation"] = str(said.get("generation", ""))
        return web.Response(status=status, headers=headers, text="<CopyObjectResult/>")

    async def _upload_in_parts(
        self, request: web.Request, bucket: str, key: str, body: bytes
    ) -> web.Response:
        upload = request.query.get("uploadId", "")
        if "uploads" in request.query:
            upload = uuid.uuid4().hex
            self._parts[upload] = {}
            return _xml("InitiateMultipartUploadResult", Bucket=bucket, Key=key, UploadId=upload)
        if upload not in self._parts:
            return web.Response(status=404)
        if request.method == "PUT":
            number = int(request.query["partNumber"])
            self._parts[upload][number] = body
            return web.Response(headers={"ETag": f'"{number}"'})
        parts = self._parts.pop(upload)
        if request.method == "DELETE":
            return web.Response(status=204)
        tags = [
            (each.tag.rpartition("}")[2], each.text) for each in ElementTree.fromstring(body).iter()
        ]
        data = b"".join(parts[int(text or 0)] for tag, text in tags if tag == "PartNumber")
        condition = request.headers.get("x-goog-if-generation-match")
        status, said = await self._write(bucket, key, data, condition)
        if status != 200:
            return web.Response(status=status)
        etag = f'"{said["etag"]}"'
        answer = _xml("CompleteMultipartUploadResult", Bucket=bucket, Key=key, ETag=etag)
        answer.headers["x-goog-generation"] = str(said["generation"])
        return answer

    def _begin_session(self, request: web.Request) -> web.Response:
        bucket = request.path.split("/")[5]
        key, condition = request.query["name"], request.query.get("ifGenerationMatch")
        name = uuid.uuid4().hex
        self._sessions[name] = _Session(bucket, key, condition)
        place = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={name}"
        return web.Response(headers={"Location": f"{place}&session=front"})

    async def _take_part(self, request: web.Request, body: bytes) -> web.Response:
        session = self._sessions.get(request.query["upload_id"])
        if session is None:
            return web.Response(status=404)
        if request.method == "DELETE":
            del self._sessions[request.query["upload_id"]]
            return web.Response(status=499)
        async with session.one_at_a_time:
            if session.answer is not None:
                return _answer(*session.answer)
            total = session.keep(request.headers["Content-Range"], body)
            if total is None or total != len(session.kept):
                kept = len(session.kept)
                return web.Response(
                    status=308, headers={"Range": f"bytes=0-{kept - 1}"} if kept else {}
                )
            session.answer = await self._write(
                session.bucket, session.key, bytes(session.kept), session.condition
            )
            return _answer(*session.answer)

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
            said = await answer.json(content_type=None)
            return answer.status, said if isinstance(said, dict) else {}


class _Session:
    """What came of an object so far.

    Args:
        bucket: The object's.
        key: The object's.
        condition: Which generation is to be replaced; "0" for none.
    """

    def __init__(self, bucket: str, key: str, condition: str | None) -> None:
        self.bucket, self.key, self.condition = bucket, key, condition
        self.kept = bytearray()
        self.answer: tuple[int, dict[str, Any]] | None = None
        self.one_at_a_time = asyncio.Lock()

    def keep(self, content_range: str, body: bytes) -> int | None:
        """Take what is new of a part, in its place; return the object's size, if it is said."""
        place, _, total = content_range.removeprefix("bytes ").partition("/")
        if place != "*":
            start = int(place.partition("-")[0])
            if start <= len(self.kept):
                self.kept += body[len(self.kept) - start :]
        return None if total == "*" else int(total)


async def _pieces(data: bytes) -> Any:
    for start in range(0, len(data), 1 << 20):
        yield data[start : start + (1 << 20)]


def _answer(status: int, said: dict[str, Any]) -> web.Response:
    return web.Response(status=status, text=json.dumps(said), content_type="application/json")


def _xml(name: str, **said: str) -> web.Response:
    root = ElementTree.Element(name)
    for tag, text in said.items():
        ElementTree.SubElement(root, tag).text = text
    return web.Response(body=ElementTree.tostring(root), content_type="application/xml")
