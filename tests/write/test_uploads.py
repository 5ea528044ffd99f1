"""Files that are closed in the background."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CommitUncertainError
from lance_stream.storage import protocols
from lance_stream.storage.objects.object_requests import RefusedError
from lance_stream.storage.store import FileWriter, Store
from lance_stream.write.uploads import Uploads
from tests.contracts.object_service import ObjectService

ROW = pa.table({"id": [1]})


class StoreKind(ObjectService):
    """A service that can delay data files, or refuse them."""

    is_refusing = False

    async def put(self, key: str, data: bytes, *, once: bool) -> bool:
        if "/data/" in key and self.is_refusing:
            raise RefusedError("the disk is full")
        return await super().put(key, data, once=once)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreKind]:
    service = StoreKind()
    monkeypatch.setitem(
        protocols.PROTOCOLS, "test", protocols.StoreKind("test", lambda *_: service.store("u"))
    )
    return service


@pytest.fixture
def ds(service: StoreKind) -> Dataset:
    return lance_stream.create_dataset("test://bucket/u", ROW.schema)


def test_versions_are_published_after_their_files(service: StoreKind, ds: Dataset) -> None:
    """Files are closed in the background, and a version must not appear before all of them
    exist.
    """
    service.is_refusing = True
    with pytest.raises(OSError, match="the disk is full") as caught:
        ds.append(ROW)
    assert not isinstance(caught.value, CommitUncertainError)
    assert ds.checkout(None).version == 1
    service.is_refusing = False
    assert ds.append(ROW).count_rows() == 1


def test_failures_wait_for_running_closes() -> None:
    """A file that appears after the clean-up of a failed write would stay forever."""
    begun, closed = threading.Event(), threading.Event()

    class SlowFile:
        def close(self) -> None:
            begun.set()
            time.sleep(0.1)
            closed.set()

    def write() -> None:
        store = cast(Store, SimpleNamespace(closes_slowly=True))
        with Uploads(store) as uploads:
            with uploads.closing(cast(FileWriter, SlowFile())):
                pass
            assert begun.wait(10)
            raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        write()
    assert closed.is_set()


class CountedFile:
    """A file that records what becomes of it, and may fail to be closed."""

    def __init__(self, *, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.seconds, self.error = seconds, error

    def close(self) -> None:
        time.sleep(self.seconds)
        self.calls.append("closed" if threading.current_thread() is THIS else "closed elsewhere")
        if self.error is not None:
            raise self.error

    def abort(self) -> None:
        self.calls.append("discarded")


THIS = threading.current_thread()


def uploads_to(*, closes_slowly: bool) -> Uploads:
    return Uploads(cast(Store, SimpleNamespace(closes_slowly=closes_slowly)))


@pytest.mark.parametrize("closes_slowly", [False, True])
def test_files_are_closed_or_discarded(closes_slowly: bool) -> None:
    """A file is complete, or does not exist."""
    files: list[Any] = [CountedFile(), CountedFile()]
    complete, partial = files
    with uploads_to(closes_slowly=closes_slowly) as uploads:
        with uploads.closing(complete) as file:
            assert file is files[0]
            assert complete.calls == []
        with pytest.raises(KeyError), uploads.closing(partial):
            raise KeyError("bad row")
        assert uploads.wait_for_all()
        uploads.wait()
    assert complete.calls == ["closed elsewhere" if closes_slowly else "closed"]
    assert partial.calls == ["discarded"]


@pytest.mark.parametrize("raises", [False, True])
def test_all_files_are_waited_for(raises: bool) -> None:
    """After one has failed, another one must not appear later."""
    failing, slow = CountedFile(error=OSError("full")), CountedFile(seconds=0.1)
    with uploads_to(closes_slowly=True) as uploads:
        for file in failing, slow:
            with uploads.closing(cast(FileWriter, file)):
                pass
        if raises:
            with pytest.raises(OSError, match="full"):
                uploads.wait()
        else:
            assert not uploads.wait_for_all()
        assert slow.calls == ["closed elsewhere"]


def test_failed_commits_leave_no_files(service: StoreKind, ds: Dataset) -> None:
    """An upload that is still under way when the commit fails must be removed as well."""
    service.objects = {key: data for key, data in service.objects.items() if "_versions" not in key}
    with pytest.raises(lance_stream.NotFoundError):
        ds.append(ROW)
    assert not [key for key in service.objects if "/data/" in key]
