"""A listing gives all names or an error: cleanup deletes what a listing does not show as needed."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import StoreRefusedError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.object_requests import RefusedError, TryAgainError

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
def test_a_folder_that_cannot_be_listed_is_an_error(
    store: LocalStore, refuse: Refuse, folder: str, number: int
) -> None:
    refuse(Path(store.root, folder), number)
    with pytest.raises(OSError, match=os.strerror(number)):
        store.list("data")
    if folder == "data":
        for listing in (store.list_names, store.list_files):
            with pytest.raises(OSError, match=os.strerror(number)):
                listing("data")


def test_a_folder_that_is_deleted_while_it_is_listed_is_empty(
    store: LocalStore, refuse: Refuse
) -> None:
    refuse(Path(store.root, "data/below"), errno.ENOENT)
    assert [each.path for each in store.list("data")] == ["data/a.lance"]


def test_a_file_that_may_not_be_looked_at_is_not_taken_for_missing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(StoreRefusedError, match="Permission denied"):
        store.exists("data/a.lance")


def test_google_must_answer_a_listing_in_json() -> None:
    http_client = pytest.importorskip(
        "lance_stream.storage.http_client", reason="the extra gcs is not installed"
    )
    for body in (b"", b'{"items": [', b"<html>", b"[]"):
        with pytest.raises(TryAgainError, match="a listing that is no JSON"):
            http_client.Answer(200, {}, body).checked_json("a listing")
    assert http_client.Answer(200, {}, b"{}").checked_json("a listing") == {}


@pytest.mark.parametrize("body", [b"{}", b"<html/>", b'{"RemoteException": 1}'])
def test_hdfs_must_answer_a_listing_with_names(body: bytes) -> None:
    pytest.importorskip("aiohttp", reason="the extra hdfs is not installed")
    from lance_stream.storage.hdfs.requests import WebHdfsRequests
    from lance_stream.storage.http_client import Answer

    async def answer(*_: Any) -> Answer:
        return Answer(200, {}, body)

    requests = WebHdfsRequests.__new__(WebHdfsRequests)
    requests._ask = answer  # type: ignore[method-assign]  # stands in
    with pytest.raises(TryAgainError, match="a listing"):
        asyncio.run(requests.list_page("t/", token=None, only_here=False, limit=None))


@pytest.mark.parametrize("body", [b"<html/>", b"<EnumerationResults/>", b""])
def test_azure_must_answer_a_listing_with_blobs(body: bytes) -> None:
    answers = pytest.importorskip(
        "lance_stream.storage.azure.answers", reason="the extra azure is not installed"
    )
    with pytest.raises(TryAgainError, match="a listing"):
        answers.page_of(answers.Answer(200, {}, body))


def test_s3_must_say_where_a_listing_goes_on() -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    from lance_stream.storage.s3.requests import S3Requests

    async def answer(*_: Any, **__: Any) -> Any:
        return {"IsTruncated": True, "Contents": []}

    requests = S3Requests.__new__(S3Requests)
    requests._ask = answer  # type: ignore[method-assign]  # stands in
    with pytest.raises(RefusedError, match="does not know ListObjectsV2"):
        asyncio.run(requests.list_page("t/", token=None, only_here=False, limit=None))
