"""A REST namespace with one bucket, which issues new keys of a short life for each request.

The proxy in front of the bucket's server knows when each key expires and refuses it afterwards, as
the service would.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import Fault, Forge
from tests.servers.store_requests import StoreRequest


class IssuingNamespace:
    """The namespace, on 127.0.0.1; tables are declared by their first request for a description.

    Args:
        bucket: The bucket.
        life_seconds: How long each key is accepted.

    Attributes:
        settings: How clients reach it.
        keys: The ids of the keys issued so far, and when each expires.
        proxy: Where the bucket is reached.
    """

    def __init__(self, bucket: Bucket, life_seconds: float) -> None:
        self.bucket, self.life_seconds = bucket, life_seconds
        self.keys: dict[str, float] = {}
        self.used: set[str] = set()
        self.proxy = FaultProxy(bucket.endpoint)
        self.proxy.choose = self._refuse_expired
        self._lock = threading.Lock()
        namespace = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.dumps(namespace.answer(urlsplit(self.path).path)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.settings = {"impl": "rest", "uri": f"http://127.0.0.1:{self._server.server_port}"}

    def answer(self, path: str) -> dict[str, Any]:
        """Return the description of a table, with new keys."""
        _, _, kind, name, _ = path.split("/")
        assert kind == "table"
        with self._lock:
            key = f"KEY{len(self.keys)}"
            self.keys[key] = time.time() + self.life_seconds
        return {
            "location": f"{self.bucket.uri}/{unquote(name).replace('$', '/')}.lance",
            "storage_options": {
                **self.bucket.storage_options,
                "aws_endpoint": self.proxy.url,
                "aws_access_key_id": key,
                "aws_secret_access_key": f"secret of {key}",
                "aws_session_token": f"token of {key}",
                "expires_at_millis": str(int(self.keys[key] * 1000)),
            },
        }

    def close(self) -> None:
        """Stop the server and the proxy."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        self.proxy.close()

    def _refuse_expired(self, request: StoreRequest) -> Fault | None:
        key = request.headers["authorization"].split("Credential=")[1].split("/")[0]
        if time.time() < self.keys[key]:
            self.used.add(key)
            return None
        return Forge(400, "ExpiredToken")
