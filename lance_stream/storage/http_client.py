"""HTTP by aiohttp, one request a call: sent once, answered whole, never followed elsewhere."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from lance_stream.storage.object_requests import Data, Patience, TryAgainError

_PIECE_BYTES = 1 << 20


class Answer(NamedTuple):
    """What came back: the status, its headers, and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return what the body says, nothing if it is no JSON."""
        try:
            said = json.loads(self.body)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def checked_json(self, what: str) -> dict[str, Any]:
        """Return what the body says.

        Args:
            what: What was asked for, for the error.

        Raises:
            TryAgainError: It is no JSON: it was cut short, or something between answered.
        """
        try:
            said = json.loads(self.body)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise TryAgainError(f"{what} that is no JSON: {self.body[:80]!r}")
        return said


class HttpClient:
    """Connections to a service, made on the thread of the event loop.

    Args:
        patience: How long it may take to connect, and how long nothing may come.
        any_certificate: Whether the service's certificate is not looked at.
        proxy_url: A proxy between; None for what the environment says.
    """

    def __init__(
        self, patience: Patience, *, any_certificate: bool = False, proxy_url: str | None = None
    ) -> None:
        self._proxy_url = proxy_url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64, ssl=not any_certificate),
            timeout=aiohttp.ClientTimeout(
                total=None,  # large data take their time, as long as they move
                sock_connect=patience.connect_seconds,
                sock_read=patience.request_seconds,
            ),
            trust_env=True,
            headers={"User-Agent": "lance-stream"},
            auto_decompress=False,
        )
        # It would send what can be repeated a second time, unasked and uncounted.
        self._session._retry_connection = False

    async def send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str],
        *,
        data: Data = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request, and return the answer, good or bad.

        Args:
            method: "GET".
            url: With its escapes; may hold a query.
            query: More of it, without escapes.
            data: The body.
            headers: What is said beside it.

        Raises:
            TryAgainError: No answer came.
        """
        joined = f"{url}{'&' if '?' in url else '?'}{urlencode(query, quote_via=quote)}"
        length = {} if method == "GET" else {"Content-Length": str(len(data))}
        try:
            async with self._session.request(
                method,
                URL(joined if query else url, encoded=True),
                data=bytes(data) if len(data) <= _PIECE_BYTES else _pieces(memoryview(data)),
                headers={**(headers or {}), **length},
                proxy=self._proxy_url,
                allow_redirects=False,
            ) as response:
                return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TryAgainError(f"no answer: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Let connections go."""
        await self._session.close()


async def _pieces(data: memoryview) -> AsyncIterator[Data]:
    """Yield large data in pieces, which are not copied."""
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
