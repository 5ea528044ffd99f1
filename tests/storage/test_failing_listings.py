"""A listing gives all names or an error: cleanup deletes what a listing does not show as needed."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import StoreError, StoreRefusedError, StoreUnavailableError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.locations import open_store

Refuse = Callable[[Path, int], None]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path))
    store.write("data/a.lance", b"a")
    store.write("data/below/b.lance", b"b")
    return store


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Return what lets the system refuse to list a folder: permissions do not bind root."""
    scandir = os.scandir

    def refuse(folder: Path, number: int) -> None:
        def guarded(path: Any) -> Any:
            if Path(path) == folder:
                raise OSError(number, os.strerror(number), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", guarded)

    return refuse


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("folder", ["data", "data/below"])
def test_an_unlistable_folder_is_an_error(
    store: LocalStore, refuse: Refuse, folder: str, number: int
) -> None:
    """Walking a tree ignores folders that it cannot list by default, and cleanup would take
    their files for unreferenced.
    """
    refuse(Path(store.root, folder), number)
    with pytest.raises(OSError, match=os.strerror(number)):
        store.list("data")
    if folder == "data":
        for listing in (store.list_names, store.list_files):
            with pytest.raises(OSError, match=os.strerror(number)):
                listing("data")


def test_folders_deleted_during_listing_are_empty(store: LocalStore, refuse: Refuse) -> None:
    """A concurrent cleanup may remove a folder between the listing of its parent and its own."""
    refuse(Path(store.root, "data/below"), errno.ENOENT)
    assert [file.path for file in store.list("data")] == ["data/a.lance"]


def test_an_unreadable_file_is_not_missing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without permission exists: reporting it as missing would let a writer take its
    name.
    """

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refused)
        with pytest.raises(StoreRefusedError, match="Permission denied"):
            store.exists("data/a.lance")


OBJECT = (
    "<Contents><Key>t/{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
    "<Size>1</Size></Contents>"
)
PAGE = "".join(OBJECT.format(f"{number:04}") for number in range(1000))
CUT = f"<ListBucketResult><IsTruncated>true</IsTruncated>{PAGE}</ListBucketResult>".encode()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b"<ListBucketResult><IsTruncated>tr", CUT[:-30]]
)
def test_unreadable_listings_are_requested_again(body: bytes) -> None:
    """A listing that is cut short, or is no XML, must not pass for a complete list of few names."""
    with one_answer(200, body) as endpoint:
        store = open_store(
            "s3://b/t",
            {"anon": "true", "endpoint": endpoint, "region": "r", "client_max_retries": "1"},
        )
        with pytest.raises(StoreUnavailableError, match=r"a listing of '' .*2 attempts"):
            store.list()


def test_a_truncated_listing_raises_an_error() -> None:
    """Cleanup would delete files that versions in the rest of the listing name."""
    with one_answer(200, CUT) as endpoint:
        store = open_store(
            "s3://b/t",
            {"anon": "true", "endpoint": endpoint, "region": "r", "client_max_retries": "1"},
        )
        with pytest.raises(StoreRefusedError, match="does not support ListObjectsV2"):
            store.list()


@contextmanager
def one_answer(status: int, body: bytes) -> Iterator[str]:
    """A service that gives one answer to all requests; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.read("data/a.lance"),
        lambda store: store.write("data/a.lance", b"new"),
        lambda store: store.write("data/a.lance", b"new", is_hint=True),
    ],
    ids=["read", "write", "overwrite"],
)
def test_files_may_fail_when_closed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, use: Callable[[LocalStore], object]
) -> None:
    """A disk behind a network reports a failed write at the end only."""
    close = os.close

    def failing(file: int) -> None:
        close(file)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", failing)
        with pytest.raises(StoreError, match=r"data/a\.lance': Input/output error"):
            use(store)
