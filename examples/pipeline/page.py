"""A part: a page with live figures and a search, and the two questions that it asks.

    python -m examples.pipeline.page

    GET /                        the page: one file, which loads nothing else
    GET /figures                 what `watch` has measured last, as JSON
    GET /search?q=...&by=words   rows by their words, or by=neighbours: by their vectors

It keeps nothing in mind, and may be killed at any time.
"""

import json
import signal
import sys
import time
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from examples.pipeline import figures
from examples.pipeline.searching import Search
from examples.pipeline.settings import Settings

PAGE = Path(__file__).with_name("page.html")
MAX_RESULTS = 10
MAX_CHARACTERS = 500
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}


class PageServer(ThreadingHTTPServer):
    """Serves the page of a table.

    Args:
        settings: The table, its figures, and the address.
    """

    daemon_threads = True

    def __init__(self, settings: Settings) -> None:
        super().__init__((settings.page_host, int(settings.page_port)), _Handler)
        self.figures = settings.figures("watch")
        self.search = Search(settings.table)
        self.has_table = Path(settings.table, "_versions")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        match url.path:
            case "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())
            case "/figures":
                numbers = figures.read(self.server.figures)
                self._send_json(HTTPStatus.OK, {**numbers, "asked_at": time.time()})
            case "/search":
                query = urllib.parse.parse_qs(url.query)
                self._search(query.get("q", [""])[0], query.get("by", ["words"])[0])
            case _:
                self._send_json(HTTPStatus.NOT_FOUND, {"error": "there is no such page"})

    def _search(self, text: str, by: str) -> None:
        ways = {"words": self.server.search.words, "neighbours": self.server.search.neighbours}
        if by not in ways:
            names = " or ".join(ways)
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": f"by is {names}, not {by!r:.50}"})
            return
        if len(text) > MAX_CHARACTERS:
            problem = f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are searched"
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": problem})
            return
        if not any(self.server.has_table.glob("*.manifest")):
            problem = "there is no table yet: the first rows are on their way"
            self._send_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": problem})
            return
        started = time.perf_counter()
        try:
            rows = ways[by](text, MAX_RESULTS)
        except Exception as error:  # of pylance, which has no class of its own for errors
            self.log_error("search failed: %s", error)
            problem = {"error": f"the search has failed: {error}"[:300]}
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, problem)
            return
        seconds = time.perf_counter() - started
        self._send_json(HTTPStatus.OK, {"rows": rows, "by": by, "seconds": seconds})

    def _send_json(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        body = json.dumps(answer, default=_plain).encode()
        self._send(status, "application/json", body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base's name)
        """Log what went wrong, and not each question."""

    def log_error(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base's name)
        print(format % arguments, file=sys.stderr, flush=True)


def _plain(value: Any) -> str:
    """Return decimals and times as text."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with PageServer(Settings.read()) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
