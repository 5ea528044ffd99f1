"""What is sent to Google Cloud Storage, and what its answers mean: against answers in a script."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

pytest.importorskip("aiohttp", reason="the extra gcs is not installed")

from lance_stream.storage.google.credentials import AccessTokens, Login
from lance_stream.storage.google.options import google_settings
from lance_stream.storage.google.requests import PART_UNIT_BYTES, GoogleRequests
from lance_stream.storage.object_requests import MissingError, RefusedError, TryAgainError

T = TypeVar("T")
KIB = 1024


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Said:
    """An answer: its status, body and headers. Status 0 breaks the connection."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    url: str
    answers: list[Said] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def then(self, status: int = 200, body: Any = b"{}", **headers: str) -> "Script":
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append(Said(status, data, named))
        return self

    def ask(self, question: Callable[[GoogleRequests], Awaitable[T]], **options: Any) -> T:
        async def run() -> T:
            settings = google_settings({"endpoint_url": self.url, **options})
            requests = GoogleRequests(settings, "b")
            try:
                return await question(requests)
            finally:
                await requests.close()

        return asyncio.run(run())


@pytest.fixture
def script() -> Iterator[Script]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            query = {name: values[0] for name, values in parse_qs(split.query).items()}
            made.requests.append(
                Request(self.command, split.path, query, dict(self.headers.items()), body)
            )
            said = made.answers.pop(0) if made.answers else Said(500, b"the script is at its end")
            if said.status == 0:
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in {"Content-Length": str(len(said.body)), **said.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.body)
            self.close_connection = int(said.headers.get("Content-Length", 0)) > len(said.body)

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  # names that http.server calls

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Script(f"http://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()


def error(message: str, reason: str = "x") -> dict[str, Any]:
    return {"error": {"message": message, "errors": [{"reason": reason}]}}


def test_a_range_is_one_request(script: Script) -> None:
    script.then(206, b"234", Content_Range="bytes 2-4/10")
    assert script.ask(lambda google: google.get("a b/ü%", 2, 5)) == b"234"
    (request,) = script.requests
    assert (request.method, request.query) == ("GET", {"alt": "media"})
    assert request.path == "/storage/v1/b/b/o/a%20b%2F%C3%BC%25"
    assert request.headers["Range"] == "bytes=2-4"


def test_a_whole_object_is_asked_for_without_a_range(script: Script) -> None:
    script.then(200, b"0123")
    assert script.ask(lambda google: google.get("k", 0, None)) == b"0123"
    assert "Range" not in script.requests[0].headers


def test_a_range_past_the_end_is_empty(script: Script) -> None:
    script.then(416, b"", Content_Range="bytes */10")
    assert script.ask(lambda google: google.get("k", 10, 12)) == b""


def test_the_part_is_cut_out_where_a_range_is_answered_with_the_whole(script: Script) -> None:
    script.then(200, b"0123456789").then(200, b"0123456789")
    assert script.ask(lambda google: google.get("k", 2, 5)) == b"234"
    assert script.ask(lambda google: google.get_end("k", 3)) == (b"789", 10)


def test_the_end_of_an_object_comes_with_its_size(script: Script) -> None:
    script.then(206, b"789", Content_Range="bytes 7-9/10")
    assert script.ask(lambda google: google.get_end("k", 3)) == (b"789", 10)
    assert script.requests[0].headers["Range"] == "bytes=-3"
    for status, place in ((416, "bytes */0"), (206, "bytes 0--1/0")):
        script.then(status, b"", Content_Range=place)
        assert script.ask(lambda google: google.get_end("k", 3)) == (b"", 0)


def test_a_whole_object_that_is_cut_short_is_asked_for_again(script: Script) -> None:
    script.then(200, b"01234", X_Goog_Stored_Content_Length="10")
    with pytest.raises(TryAgainError, match="5 bytes of 10"):
        script.ask(lambda google: google.get("k", 0, None))


@pytest.mark.parametrize("place", ["bytes 0-9/20", "bytes 0-2/20", "none", ""])
def test_an_answer_that_is_not_as_long_as_it_says_is_asked_for_again(
    script: Script, place: str
) -> None:
    script.then(206, b"01234", Content_Range=place).then(206, b"01234", Content_Range=place)
    for question in (
        lambda google: google.get("k", 0, 10),
        lambda google: google.get_end("k", 10),
    ):
        with pytest.raises(TryAgainError):
            script.ask(question)


def test_an_answer_that_breaks_off_is_asked_for_again(script: Script) -> None:
    script.then(206, b"01234", Content_Range="bytes 0-9/20", Content_Length="10")
    with pytest.raises(TryAgainError, match="no answer"):
        script.ask(lambda google: google.get("k", 0, 10))


@pytest.mark.parametrize("method", ["get", "put", "delete"])
def test_a_broken_connection_is_never_tried_again_unasked(script: Script, method: str) -> None:
    async def ask(google: GoogleRequests) -> None:
        await google.delete("k")  # a connection that is kept, and breaks when it is used again
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "get": lambda: google.get("k", 0, 1),
            "put": lambda: google.put("k", b"x", once=True),
            "delete": lambda: google.delete("k"),
        }
        await calls[method]()

    script.then(204, b"").then(0)
    with pytest.raises(TryAgainError, match="no answer"):
        script.ask(ask)
    assert len(script.requests) == 2


def test_nobody_who_listens_is_no_answer() -> None:
    with pytest.raises(TryAgainError, match="no answer"):
        Script("http://127.0.0.1:1").ask(lambda google: google.head("k"))


def test_what_is_said_of_an_object(script: Script) -> None:
    said = {"name": "k", "size": "12", "timeCreated": "2026-01-02T03:04:05.5Z", "etag": "E"}
    script.then(200, said).then(200, {**said, "md5Hash": "ASM="})
    info = script.ask(lambda google: google.head("k"))
    assert info == ("k", 12, 1767323045.5, "E")
    assert script.ask(lambda google: google.head("k")).etag == "0123"


@pytest.mark.parametrize("once", [True, False])
def test_writing_is_one_request_with_or_without_a_condition(script: Script, once: bool) -> None:
    script.then(200, {"size": "3"})
    assert script.ask(lambda google: google.put("a/b", memoryview(b"abc"), once=once))
    (request,) = script.requests
    assert (request.method, request.path) == ("POST", "/upload/storage/v1/b/b/o")
    assert (request.query["uploadType"], request.query["name"]) == ("media", "a/b")
    assert request.query.get("ifGenerationMatch") == ("0" if once else None)
    assert request.body == b"abc"


def test_large_data_are_sent_whole(script: Script) -> None:
    data = bytes(range(256)) * 20_000
    script.then()
    assert script.ask(lambda google: google.put("k", memoryview(data), once=False))
    assert script.requests[0].body == data
    assert script.requests[0].headers["Content-Length"] == str(len(data))


def test_a_name_that_is_taken_is_told_only_to_who_asked(script: Script) -> None:
    script.then(412, error("conditionNotMet"))
    assert not script.ask(lambda google: google.put("k", b"", once=True))
    script.then(412, error("retention"))
    with pytest.raises(RefusedError, match="412 retention"):
        script.ask(lambda google: google.put("k", b"", once=False))


def test_a_listing_asks_for_no_more_than_is_needed(script: Script) -> None:
    made = "2026-01-02T03:04:05Z"
    script.then(
        200,
        {"items": [{"name": "p/a", "size": "1", "timeCreated": made}], "nextPageToken": "t"},
    ).then(200, {"prefixes": ["p/q/"]})
    page = script.ask(lambda google: google.list_page("p/", token=None, only_here=True, limit=1))
    assert ([each.key for each in page.objects], page.token) == (["p/a"], "t")
    last = script.ask(lambda google: google.list_page("p/", token="t", only_here=False, limit=None))
    assert (list(last.objects), last.token) == ([], None)
    first, second = (request.query for request in script.requests)
    assert (first["prefix"], first["maxResults"], first["delimiter"]) == ("p/", "1", "/")
    assert (second["pageToken"], second["maxResults"]) == ("t", "1000")
    assert "delimiter" not in second


def test_deleting_what_is_gone_is_no_error(script: Script) -> None:
    script.then(204, b"").then(404, error("No such object: b/k"))
    for _ in range(2):
        script.ask(lambda google: google.delete("k"))
    assert [request.method for request in script.requests] == ["DELETE", "DELETE"]


def test_a_copy_goes_on_until_it_is_done(script: Script) -> None:
    script.then(200, {"done": False, "rewriteToken": "t"}).then(200, {"done": True})
    script.ask(lambda google: google.copy("a/1", "a/2"))
    assert [request.query.get("rewriteToken") for request in script.requests] == [None, "t"]
    assert script.requests[0].path == "/storage/v1/b/b/o/a%2F1/rewriteTo/b/b/o/a%2F2"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_later_means_later(script: Script, status: int) -> None:
    script.then(status, error("slow down"), Retry_After="7")
    with pytest.raises(TryAgainError, match=f"{status} slow down") as caught:
        script.ask(lambda google: google.put("k", b"", once=True))
    assert caught.value.after_seconds == 7


def test_too_many_requests_may_be_told_as_forbidden(script: Script) -> None:
    script.then(403, error("calm down", "rateLimitExceeded"))
    with pytest.raises(TryAgainError):
        script.ask(lambda google: google.head("k"))


@pytest.mark.parametrize(
    ("status", "body", "way_out"),
    [
        (400, error("Bucket is requester pays bucket but no user project"), "requester_pays"),
        (401, error("Anonymous caller does not have access"), "application-default login"),
        (403, error("no storage.objects.get access"), "Storage Object User"),
        (404, error("The specified bucket does not exist."), "Make it first"),
        (405, b"<html>\n<p>not here</p>", "405 <html> <p>not here</p>"),
        (302, b"", "302"),
    ],
)
def test_a_refusal_says_the_way_out(script: Script, status: int, body: Any, way_out: str) -> None:
    script.then(status, body)
    with pytest.raises(RefusedError, match=way_out):
        script.ask(lambda google: google.head("k"))


def test_an_object_that_is_missing_is_told_from_a_bucket(script: Script) -> None:
    for question in (
        lambda google: google.get("k", 0, 1),
        lambda google: google.get_end("k", 1),
        lambda google: google.head("k"),
        lambda google: google.copy("k", "l"),
    ):
        script.then(404, error("No such object: b/k"))
        with pytest.raises(MissingError):
            script.ask(question)
    for question in (
        lambda google: google.put("k", b"", once=False),
        lambda google: google.list_page("p/", token=None, only_here=True, limit=None),
        lambda google: google.start_upload("k", once=False),
    ):
        script.then(404, error("Not Found"))
        with pytest.raises(RefusedError, match="no such bucket"):
            script.ask(question)


def test_who_pays_stands_in_every_request(script: Script) -> None:
    script.then(204, b"").then(200, {"done": True})
    for question in (lambda google: google.delete("k"), lambda google: google.copy("k", "l")):
        script.ask(question, requester_pays="payer")
    assert [request.query["userProject"] for request in script.requests] == ["payer", "payer"]


def test_a_token_is_sent_along(script: Script) -> None:
    script.then(204, b"")
    script.ask(lambda google: google.delete("k"), token="ya29.x")
    assert script.requests[0].headers["Authorization"] == "Bearer ya29.x"


class Tokens:
    """Credentials of google-auth's shape."""

    def __init__(self) -> None:
        self.num_refreshed = 0
        self.valid = True

    def refresh(self, _request: Any) -> None:
        self.num_refreshed += 1

    def apply(self, headers: dict[str, str]) -> None:
        headers["Authorization"] = f"Bearer {self.num_refreshed}"


def test_a_token_that_is_not_accepted_is_renewed_once(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens()
    monkeypatch.setattr("lance_stream.storage.google.credentials._credentials", lambda _: tokens)

    async def ask(google: GoogleRequests) -> None:
        with pytest.raises(TryAgainError):
            await google.delete("k")
        await google.delete("k")
        with pytest.raises(TryAgainError):
            await google.delete("k")
        with pytest.raises(RefusedError):
            await google.delete("k")

    script.then(401).then(204, b"").then(401).then(401)
    script.ask(ask, token="google_default")
    sent = [request.headers["Authorization"] for request in script.requests]
    assert sent == ["Bearer 1", "Bearer 2", "Bearer 2", "Bearer 3"]


def test_credentials_that_are_not_there_are_refused_with_the_ways_out() -> None:
    for login in (
        Login("file", "/not/there.json"),
        Login("key", '{"type": "service_account"}'),
        Login("key", "{"),
        Login("key", '{"type": "external_account"}'),
    ):
        with pytest.raises(RefusedError, match="gcloud auth application-default login"):
            asyncio.run(AccessTokens(login).headers())


async def upload(google: GoogleRequests, parts: list[bytes], *, once: bool) -> bool:
    sent = await google.start_upload("k", once=once)
    for number, part in enumerate(parts[:-1]):
        await sent.put_part(number, part)
    return await sent.finish(len(parts) - 1, parts[-1])


def begun(script: Script) -> Script:
    return script.then(200, b"", Location=f"{script.url}/upload/session?upload_id=u")


def places(script: Script) -> list[str]:
    return [each.headers["Content-Range"] for each in script.requests if each.method == "PUT"]


PART = b"p" * PART_UNIT_BYTES
STOP = len(PART)


@pytest.mark.parametrize("once", [True, False])
def test_a_large_object_is_sent_in_parts(script: Script, once: bool) -> None:
    begun(script).then(308, b"", Range=f"bytes=0-{STOP - 1}").then(200, {"size": str(STOP + 3)})
    assert script.ask(lambda google: upload(google, [PART, b"end"], once=once))
    begin, first, last = script.requests
    assert (begin.method, begin.query["uploadType"]) == ("POST", "resumable")
    assert begin.query.get("ifGenerationMatch") == ("0" if once else None)
    assert (first.path, first.query) == ("/upload/session", {"upload_id": "u"})
    assert places(script) == [f"bytes 0-{STOP - 1}/*", f"bytes {STOP}-{STOP + 2}/{STOP + 3}"]
    assert (first.body, last.body) == (PART, b"end")


def test_what_was_not_kept_of_a_part_is_sent_again(script: Script) -> None:
    parts = [PART * 3, b"end"]
    begun(script).then(308, b"", Range=f"bytes=0-{STOP - 1}")
    script.then(308, b"", Range=f"bytes=0-{3 * STOP - 1}").then(200, {"size": str(3 * STOP + 3)})
    assert script.ask(lambda google: upload(google, parts, once=False))
    assert places(script)[:2] == [f"bytes 0-{3 * STOP - 1}/*", f"bytes {STOP}-{3 * STOP - 1}/*"]
    assert len(script.requests[2].body) == 2 * STOP


def test_a_part_that_was_lost_goes_to_the_same_place_again(script: Script) -> None:
    async def ask(google: GoogleRequests) -> bool:
        sent = await google.start_upload("k", once=False)
        for _ in range(3):
            with pytest.raises(TryAgainError):
                await sent.put_part(0, PART)
        await sent.put_part(0, PART)
        with pytest.raises(TryAgainError):
            await sent.finish(1, b"end")
        return await sent.finish(1, b"end")

    begun(script).then(0).then(503).then(308, b"")  # the last one keeps nothing
    script.then(308, b"", Range=f"bytes=0-{STOP - 1}").then(0).then(200, {"size": str(STOP + 3)})
    assert script.ask(ask)
    assert (
        places(script)
        == [f"bytes 0-{STOP - 1}/*"] * 4 + [f"bytes {STOP}-{STOP + 2}/{STOP + 3}"] * 2
    )


def test_an_upload_may_end_without_bytes(script: Script) -> None:
    begun(script).then(308, b"", Range=f"bytes=0-{STOP - 1}").then(200, {"size": str(STOP)})
    assert script.ask(lambda google: upload(google, [PART, b""], once=False))
    assert places(script)[-1] == f"bytes */{STOP}"


def test_an_upload_learns_at_its_end_that_the_name_is_taken(script: Script) -> None:
    begun(script).then(412)
    assert not script.ask(lambda google: upload(google, [b"end"], once=True))


def test_an_upload_that_is_gone_may_have_been_finished(script: Script) -> None:
    for status in (404, 410):
        begun(script).then(status)
        with pytest.raises(MissingError):
            script.ask(lambda google: upload(google, [b"end"], once=True))


def test_a_part_of_an_upload_that_is_gone_is_refused(script: Script) -> None:
    begun(script).then(404)
    with pytest.raises(RefusedError, match="Write the file again"):
        script.ask(lambda google: upload(google, [PART, b"end"], once=False))


def test_an_object_of_another_size_than_was_sent_is_not_taken_for_ours(script: Script) -> None:
    begun(script).then(200, {"size": "6"})
    with pytest.raises(RefusedError, match="6 bytes was made of the 3"):
        script.ask(lambda google: upload(google, [b"end"], once=False))


def test_an_upload_that_is_dropped_leaves_nothing(script: Script) -> None:
    async def ask(google: GoogleRequests) -> None:
        await (await google.start_upload("k", once=False)).abort()

    begun(script).then(499)
    script.ask(ask)
    assert script.requests[-1].method == "DELETE"
    assert unquote(script.requests[-1].path) == "/upload/session"
