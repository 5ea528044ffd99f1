"""The proxy injects the faults that a test asks for, and no others."""

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import (
    Act,
    CutAfter,
    CutBefore,
    CutBody,
    Forge,
    Hold,
    Repeat,
    Shorten,
    Slow,
)
from tests.servers.store_requests import StoreRequest, describe


class Shelf(BaseHTTPRequestHandler):
    """Keeps what is put under a path; the second conditional put meets a 412."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    lock = threading.Lock()

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            taken = self.headers.get("If-None-Match") == "*" and self.path in self.files
            if not taken:
                self.files[self.path] = body
        self.send_response(412 if taken else 200)
        self.send_header("Location", f"http://{self.headers['Host']}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        body = self.files.get(self.path)
        self.send_response(404 if body is None else 200)
        if body is not None and self.path.endswith("chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            return
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    def do_HEAD(self) -> None:
        self.do_GET()


class Server(ThreadingHTTPServer):
    request_queue_size = 256


@pytest.fixture
def files() -> dict[str, bytes]:
    return {}


@pytest.fixture
def proxy(files: dict[str, bytes]) -> Iterator[FaultProxy]:
    shelf = type("ThisShelf", (Shelf,), {"files": files})
    server = Server(("127.0.0.1", 0), shelf)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    with FaultProxy(f"http://127.0.0.1:{server.server_address[1]}") as proxy:
        yield proxy
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    proxy: FaultProxy, method: str, path: str, body: Any = None, timeout: float = 10, **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=timeout)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    return connection.getresponse()


def put_once(proxy: FaultProxy, body: bytes = b"mine", timeout: float = 10) -> int:
    return ask(proxy, "PUT", "/b/k", body, timeout, If_None_Match="*").status


def test_unmatched_requests_are_forwarded_and_counted(
    proxy: FaultProxy, files: dict[str, bytes]
) -> None:
    """Tests derive the number of faults to inject from these counts."""
    assert ask(proxy, "PUT", "/b/t/one", b"x" * 600_000).status == 200
    assert ask(proxy, "GET", "/b/t/one").read() == b"x" * 600_000
    assert ask(proxy, "HEAD", "/b/t/one").headers["Content-Length"] == "600000"
    assert ask(proxy, "PUT", "/b/chunked", iter([b"ab", b"c"])).status == 200
    assert ask(proxy, "GET", "/b/chunked").read() == b"abc"
    assert ask(proxy, "GET", "/b/two").status == 404
    assert proxy.kinds() == {"put": 2, "get": 3, "head": 1}
    assert proxy.num_bytes() == (600_003, 600_003)
    assert [request.key for request in proxy.seen("get", "t/")] == ["t/one"]
    assert proxy.story().splitlines()[0] == "1: put t/one -> 200"


def test_redirects_stay_at_the_proxy(proxy: FaultProxy) -> None:
    """One connection carries many requests, and a redirect must lead back to the proxy."""
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc)
    for number in range(3):
        connection.request("PUT", f"/b/{number}", b"x")
        answer = connection.getresponse()
        assert answer.read() == b""
        assert answer.headers["Location"] == f"{proxy.url}/b/{number}"


def test_concurrent_clients_get_their_own_responses(proxy: FaultProxy) -> None:
    """Mixed responses in the proxy would look like faults of the stores under test."""

    def there_and_back(number: int) -> bytes:
        ask(proxy, "PUT", f"/b/{number}", b"%d" % number)
        return ask(proxy, "GET", f"/b/{number}").read()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(there_and_back, range(100))) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("reset", [False, True])
def test_cuts_lose_the_request_or_response(
    proxy: FaultProxy, files: dict[str, bytes], reset: bool
) -> None:
    """A cut before keeps the request from the server, a cut after the response from the client."""
    proxy.add(CutBefore(reset))
    with pytest.raises(ConnectionError):
        put_once(proxy)
    assert files == {}
    proxy.add(CutAfter(reset))
    with pytest.raises(ConnectionError):
        put_once(proxy)
    assert files == {"/b/k": b"mine"}
    assert put_once(proxy, b"theirs") == 412


def test_responses_are_cut_or_shortened(proxy: FaultProxy) -> None:
    """A cut body announces more bytes than it has, while a shortened one claims to be complete,
    and readers must survive both.
    """
    ask(proxy, "PUT", "/b/k", b"0123456789")
    proxy.add(CutBody(0.3), kind="get")
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(proxy, "GET", "/b/k").read()
    assert caught.value.partial == b"012"
    proxy.clear()
    proxy.add(Shorten(0.3), kind="get")
    assert ask(proxy, "GET", "/b/k").read() == b"012"
    proxy.add(CutBody())
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(proxy, "PUT", "/b/empty", b"")


def test_held_requests_arrive_after_clients_leave(
    proxy: FaultProxy, files: dict[str, bytes]
) -> None:
    """This is how a commit takes effect after its writer has given up."""
    proxy.add(Hold(0.3))
    with pytest.raises(TimeoutError):
        put_once(proxy, timeout=0.1)
    assert files == {}
    proxy.quiet()
    assert files == {"/b/k": b"mine"}


def test_slow_responses_follow_immediate_processing(
    proxy: FaultProxy, files: dict[str, bytes]
) -> None:
    """The client times out although the server has done its work."""
    proxy.add(Slow(0.3))
    with pytest.raises(TimeoutError):
        put_once(proxy, timeout=0.1)
    assert files == {"/b/k": b"mine"}


def test_repeated_requests_meet_themselves(proxy: FaultProxy) -> None:
    """Clients and proxies repeat requests, and the second one finds the object created."""
    proxy.add(Repeat())
    assert put_once(proxy) == 412
    assert ask(proxy, "GET", "/b/k").read() == b"mine"


def test_forged_errors_replace_or_follow_effects(
    proxy: FaultProxy, files: dict[str, bytes]
) -> None:
    """An error may come instead of or after the effect, and tests need to choose."""
    proxy.add(Forge(503), times=2)
    assert [put_once(proxy), put_once(proxy), put_once(proxy)] == [503, 503, 200]
    assert files.pop("/b/k") == b"mine"
    proxy.add(Forge(500, landed=True))
    answer = ask(proxy, "PUT", "/b/k", b"mine")
    assert (answer.status, b"InternalError" in answer.read()) == (500, True)
    assert files == {"/b/k": b"mine"}


def test_rules_count_matches_and_first_wins(
    proxy: FaultProxy,
) -> None:
    """Of several rules that match, the first one that fires is applied."""
    third = proxy.add(Forge(429), kind="get", key="a", at=2, times=2)
    ever = proxy.add(Forge(503), key="b", times=None)
    proxy.choose = lambda request: Forge(403) if request.kind == "head" else None
    got = [ask(proxy, "GET", f"/b/{key}").status for key in "aabaabc"]
    assert got == [404, 429, 503, 429, 404, 503, 404]
    assert ask(proxy, "HEAD", "/b/a").status == 403
    assert (third.num_matched, third.num_fired, ever.num_fired) == (4, 2, 2)
    proxy.heal()
    assert ask(proxy, "GET", "/b/b").status == 404
    assert len(proxy.requests) == 9


def test_acts_precede_their_request(proxy: FaultProxy, files: dict[str, bytes]) -> None:
    """A test lets another writer act exactly before a request arrives."""

    def act(request: StoreRequest) -> None:
        files["/b/k"] = request.kind.encode()

    proxy.add(Act(act))
    assert put_once(proxy) == 412
    assert files == {"/b/k": b"put once"}
    proxy.add(Act(act, then=CutBefore()))
    with pytest.raises(ConnectionError):
        put_once(proxy)


def test_latency_delays_requests_in_parallel(
    proxy: FaultProxy,
) -> None:
    """Delays one after the other would make concurrent reads look slow."""
    proxy.latency_seconds = 0.1
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(proxy, "GET", "/b/k"), range(8)))
    assert 0.1 <= time.monotonic() - started < 0.4


A, D = {"x-ms-version": "1"}, {"x-amz-target": "DynamoDB_20120810.PutItem"}
ONCE = {"if-none-match": "*"}
UPLOAD = "/upload/storage/v1/b/bk/o?name=t/k"


@pytest.mark.parametrize(
    ("method", "target", "headers", "body", "expected"),
    [
        ("GET", "/bk/t/a%20b", {}, b"", ("s3", "get", "t/a b")),
        ("GET", "/bk?list-type=2&prefix=t%2F_v/", {}, b"", ("s3", "list", "t/_v/")),
        ("PUT", "/bk/t/k", ONCE, b"", ("s3", "put once", "t/k")),
        ("PUT", "/bk/t/k", {"x-amz-copy-source": "a"}, b"", ("s3", "copy", "t/k")),
        ("POST", "/bk?delete", {}, b"", ("s3", "bulk delete", "")),
        ("POST", "/bk/k?uploads", {}, b"", ("s3", "start upload", "k")),
        ("PUT", "/bk/k?uploadId=1&partNumber=1", {}, b"", ("s3", "part", "k")),
        ("POST", "/bk/k?uploadId=1", ONCE, b"", ("s3", "complete once", "k")),
        ("DELETE", "/bk/k?uploadId=1", {}, b"", ("s3", "abort", "k")),
        ("DELETE", "/bk/k", {}, b"", ("s3", "delete", "k")),
        ("HEAD", "/bk", {}, b"", ("s3", "other", "")),
        ("PUT", "/acc/bk/t/k", A | ONCE, b"", ("azure", "put once", "t/k")),
        ("GET", "/acc/bk?restype=container&comp=list&prefix=t", A, b"", ("azure", "list", "t")),
        ("PUT", "/acc/bk/k?comp=block&blockid=1", A, b"", ("azure", "part", "k")),
        ("PUT", "/acc/bk/k?comp=blocklist", A | ONCE, b"", ("azure", "complete once", "k")),
        ("PUT", "/acc/bk/k", A | {"x-ms-copy-source": "u"}, b"", ("azure", "copy", "k")),
        ("PUT", "/acc/bk?restype=container", A, b"", ("azure", "other", "")),
        ("GET", "/storage/v1/b/bk/o/t%2Fk?alt=media", {}, b"", ("google", "get", "t/k")),
        ("GET", "/storage/v1/b/bk/o/t%2Fk", {}, b"", ("google", "head", "t/k")),
        ("GET", "/storage/v1/b/bk/o?prefix=t", {}, b"", ("google", "list", "t")),
        ("GET", "/storage/v1/b/bk/o/?prefix=t", {}, b"", ("google", "list", "t")),
        ("POST", f"{UPLOAD}&uploadType=media", {}, b"", ("google", "put", "t/k")),
        (
            "POST",
            "/upload/storage/v1/b/bk/o?uploadType=multipart&ifGenerationMatch=0",
            {},
            b'--==0==\r\n\r\n{"metadata": null, "name": "t/\\u00e9"}',
            ("google", "put once", "t/é"),
        ),
        (
            "POST",
            f"{UPLOAD}&uploadType=resumable&ifGenerationMatch=0",
            {},
            b"",
            ("google", "start upload once", "t/k"),
        ),
        (
            "PUT",
            f"{UPLOAD}&upload_id=1",
            {"content-range": "bytes 0-9/*"},
            b"",
            ("google", "part", "t/k"),
        ),
        (
            "PUT",
            f"{UPLOAD}&upload_id=1",
            {"content-range": "bytes 0-9/20"},
            b"",
            ("google", "part", "t/k"),
        ),
        (
            "PUT",
            f"{UPLOAD}&upload_id=1",
            {"content-range": "bytes 0-9/10"},
            b"",
            ("google", "complete", "t/k"),
        ),
        ("DELETE", f"{UPLOAD}&upload_id=1", {}, b"", ("google", "abort", "t/k")),
        ("POST", "/storage/v1/b/bk/o/a/rewriteTo/b/bk/o/t%2Fk", {}, b"", ("google", "copy", "t/k")),
        ("POST", "/batch/storage/v1", {}, b"", ("google", "bulk delete", "")),
        ("POST", "/", D, b'{"TableName": "T"}', ("dynamodb", "PutItem", "T")),
    ],
)
def test_requests_have_one_name_per_action(
    method: str, target: str, headers: dict[str, str], body: bytes, expected: tuple[str, ...]
) -> None:
    """A fault is described once, and must hit the same action of every service."""
    assert describe(method, target, headers, body) == expected
