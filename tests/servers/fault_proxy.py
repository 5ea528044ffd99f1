"""A proxy between a client and a store's server: it counts, waits, and does what goes wrong.

    with FaultProxy(moto_url) as proxy:
        table = open_dataset("s3://bucket/t", storage_options={..., "aws_endpoint": proxy.url})
        proxy.clear()
        proxy.add(CutAfter(), kind="put once", key=".manifest")     # the first that matches
        proxy.add(Forge(503), at=4, times=None)                     # all from the fourth on
        table.append(rows)
        assert proxy.kinds() == {"put": 1, "put once": 3, ...}
        assert len(proxy.seen(kind="get")) == 2

It speaks HTTP/1.1 on 127.0.0.1, to any number of clients at once, on any service of
`store_requests`. Rules are looked through in the order in which they were added, and the first that
fires is taken; then `choose` is asked, if it is set. What is passed on carries the server's own
Host; in answers, a Location at the server is turned into one at the proxy. Each request waits
`latency_seconds` first.

What the clients of a process that is about to be killed have sent may still come: `proxy.quiet()`
waits until nothing is under way.
"""

import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.servers.store_faults import (
    Act,
    CutAfter,
    CutBefore,
    CutBody,
    Fault,
    Forge,
    Hold,
    Repeat,
    Shorten,
    Slow,
    forged_answer,
)
from tests.servers.store_requests import StoreRequest, describe

_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"}
_PIECE_BYTES = 256 << 10
_SERVER_TIMEOUT_SECONDS = 120.0


@dataclass
class Rule:
    """A fault, and which requests meet it.

    Attributes:
        fault: What is done.
        at: The first of the requests that match which meets it, from 1.
        times: How many in a row do; None for all from then on.
        kind: Requests of this kind; None for any.
        key: Requests whose key contains this.
        matches: Requests for which this is true.
        num_matched: How many have matched so far.
        num_fired: How many have met the fault.
    """

    fault: Fault
    at: int = 1
    times: int | None = 1
    kind: str | None = None
    key: str = ""
    matches: Callable[[StoreRequest], bool] = lambda _request: True
    num_matched: int = 0
    num_fired: int = 0

    def fires(self, request: StoreRequest) -> bool:
        """Return whether a request meets the fault, and count it."""
        if (
            (self.kind is not None and request.kind != self.kind)
            or self.key not in request.key
            or not self.matches(request)
        ):
            return False
        self.num_matched += 1
        past = self.num_matched - self.at
        fires = past >= 0 and (self.times is None or past < self.times)
        self.num_fired += fires
        return fires


class FaultProxy:
    """A proxy in front of one server; see the module.

    Args:
        server_url: Where the server listens: "http://127.0.0.1:5000".
        latency_seconds: How long each request waits before it is passed on.

    Attributes:
        url: Where the proxy listens.
        requests: What it has seen since the last `clear`, in the order of coming.
        choose: Asked for a fault for each request that meets no rule; called by one thread at a
            time.
    """

    def __init__(self, server_url: str, latency_seconds: float = 0.0) -> None:
        self.server = urlsplit(server_url).netloc
        self.latency_seconds = latency_seconds
        self.requests: list[StoreRequest] = []
        self.choose: Callable[[StoreRequest], Fault | None] | None = None
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._under_way = 0
        self._listener = _Listener(self)
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and drop every connection."""
        self._listener.shutdown()
        self._listener.server_close()
        self._listener.drop_all()
        self._thread.join(10)

    def add(self, fault: Fault, **when: Any) -> Rule:
        """Let requests meet a fault; `when` is what `Rule` takes."""
        rule = Rule(fault, **when)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget all rules, and all requests seen so far."""
        with self._lock:
            self._rules, self.requests, self.choose = [], [], None

    def heal(self) -> None:
        """Forget all rules; go on counting."""
        with self._lock:
            self._rules, self.choose = [], None

    def seen(self, kind: str | None = None, key: str = "") -> list[StoreRequest]:
        """Return the requests of a kind whose key contains something."""
        with self._lock:
            return [
                request
                for request in self.requests
                if kind in (None, request.kind) and key in request.key
            ]

    def kinds(self) -> dict[str, int]:
        """Return how many requests of each kind came."""
        return dict(Counter(request.kind for request in self.seen()))

    def num_bytes(self) -> tuple[int, int]:
        """Return how many bytes of bodies were sent, and received."""
        seen = self.seen()
        return sum(x.num_bytes_sent for x in seen), sum(x.num_bytes_received for x in seen)

    def story(self) -> str:
        """Return the requests, a line each: for the message of an assertion."""
        return "\n".join(map(str, self.seen()))

    def quiet(self, timeout_seconds: float = 10.0) -> None:
        """Wait until no request is under way."""
        end = time.monotonic() + timeout_seconds
        while self._under_way:
            assert time.monotonic() < end, f"still under way:\n{self.story()}"
            time.sleep(0.002)

    def drop_connections(self) -> None:
        """Close every connection that clients hold."""
        self._listener.drop_all()

    def _arrived(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[StoreRequest, Fault | None]:
        service, kind, key = describe(method, target, headers, body)
        with self._lock:
            self._under_way += 1
            request = StoreRequest(
                len(self.requests) + 1, method, target, headers, service, kind, key, len(body)
            )
            request.started = time.monotonic()
            self.requests.append(request)
            fault = next((rule.fault for rule in self._rules if rule.fires(request)), None)
            if fault is None and self.choose is not None:
                fault = self.choose(request)
        return request, fault

    def _record_end(self, request: StoreRequest) -> None:
        request.seconds = time.monotonic() - request.started
        with self._lock:
            self._under_way -= 1


class _Answer(NamedTuple):
    status: int
    reason: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    content_length: int | None


class _Listener(ThreadingHTTPServer):
    """Accepts connections, and remembers them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def drop_all(self) -> None:
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go when they like."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self._upstream: HTTPConnection | None = None

    def finish(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        with suppress(OSError):
            super().finish()

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        proxy = self.server.proxy
        sent = list(self.headers.items())
        headers = {name.lower(): value for name, value in sent}
        body = self._read_body(headers)
        request, fault = proxy._arrived(self.command, self.path, headers, body)
        request.fault = repr(fault) if fault else ""
        try:
            if proxy.latency_seconds:
                time.sleep(proxy.latency_seconds)
            self._meet(request, fault, sent, body)
        except HTTPException as error:
            request.fault += f" the server: {error!r}"
            self._cut(reset=False)
        except OSError as error:
            request.fault += f" {error!r}"
            self.close_connection = True
        finally:
            proxy._record_end(request)

    def _meet(
        self,
        request: StoreRequest,
        fault: Fault | None,
        sent: Sequence[tuple[str, str]],
        body: bytes,
    ) -> None:
        match fault:
            case Act():
                fault.function(request)
                self._meet(request, fault.then, sent, body)
            case CutBefore():
                self._cut(reset=fault.reset)
            case CutAfter():
                self._ask(sent, body)
                self._cut(reset=fault.reset)
            case Forge():
                if fault.landed:
                    self._ask(sent, body)
                response, text = forged_answer(fault, request)
                self._answer(request, _Answer(fault.status, "Forged", response, text, len(text)))
            case CutBody():
                answer = self._ask(sent, body)
                share = answer.body[: int(len(answer.body) * fault.share)]
                if share:
                    self._answer(request, answer._replace(body=share), is_whole=False)
                else:
                    self.wfile.write(b"HTTP/1.1 2")
                self._cut(reset=False)
            case Shorten():
                answer = self._ask(sent, body)
                share = answer.body[: int(len(answer.body) * fault.share)]
                if answer.content_length is not None and self.command != "HEAD":
                    answer = answer._replace(content_length=len(share))
                self._answer(request, answer._replace(body=share))
            case Hold():
                time.sleep(fault.seconds)
                self._answer(request, self._ask(sent, body))
            case Slow():
                answer = self._ask(sent, body)
                time.sleep(fault.seconds)
                self._answer(request, answer)
            case Repeat():
                answers = [self._ask(sent, body) for _ in range(2)]
                self._answer(request, answers[fault.answer - 1])
            case None:
                self._answer(request, self._ask(sent, body))

    def _read_body(self, headers: dict[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return self.rfile.read(int(headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _ask(self, sent: Sequence[tuple[str, str]], body: bytes) -> _Answer:
        """Pass a request on, once, and return the whole answer."""
        upstream = self._connected()
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        upstream.putheader("Host", self.server.proxy.server)
        dropped_headers = {*_HOP_BY_HOP, "host", "expect", "transfer-encoding", "content-length"}
        for name, value in sent:
            if name.lower() not in dropped_headers:
                upstream.putheader(name, value.encode("latin-1"))
        if body or self.command in ("PUT", "POST"):
            upstream.putheader("Content-Length", str(len(body)))
        upstream.endheaders(body or None)
        response = upstream.getresponse()
        answered = response.read()
        length = response.headers.get("Content-Length")
        chunked = "chunked" in response.headers.get("Transfer-Encoding", "")
        content_length = int(length) if length is not None else None if chunked else len(answered)
        return _Answer(
            response.status, response.reason, response.getheaders(), answered, content_length
        )

    def _connected(self) -> HTTPConnection:
        """Return a connection to the server that it has not closed: nothing is sent twice."""
        if self._upstream is not None:
            stream = self._upstream.sock
            if stream is not None and not select.select([stream], [], [], 0)[0]:
                return self._upstream
            self._upstream.close()
        self._upstream = HTTPConnection(self.server.proxy.server, timeout=_SERVER_TIMEOUT_SECONDS)
        return self._upstream

    def _answer(self, request: StoreRequest, answer: _Answer, *, is_whole: bool = True) -> None:
        request.status = answer.status
        self.send_response_only(answer.status, answer.reason)
        dropped_headers = {*_HOP_BY_HOP, "transfer-encoding", "content-length"}
        for name, value in answer.headers:
            if name.lower() == "location":
                value = self._at_the_proxy(value)
            if name.lower() not in dropped_headers:
                self.send_header(name, value)
        has_no_body = answer.status in (204, 304)
        is_chunked = answer.content_length is None and not has_no_body
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif not has_no_body:
            self.send_header("Content-Length", str(answer.content_length))
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(answer.body), _PIECE_BYTES):
            piece = answer.body[start : start + _PIECE_BYTES]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            request.num_bytes_received += len(piece)
        if is_chunked and is_whole:
            self.wfile.write(b"0\r\n\r\n")

    def _at_the_proxy(self, location: str) -> str:
        url = urlsplit(location)
        is_here = url.hostname in ("127.0.0.1", "localhost", "0.0.0.0")
        if not is_here or url.port != urlsplit(f"//{self.server.proxy.server}").port:
            return location
        return url._replace(netloc=urlsplit(self.server.proxy.url).netloc).geturl()

    def _cut(self, *, reset: bool) -> None:
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                self.connection.close()
        else:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
