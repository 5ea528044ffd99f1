"""Files that are closed in the background."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

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


def test_failed_commits_leave_no_files(service: StoreKind, ds: Dataset) -> None:
    """An upload that is still under way when the commit fails must be removed as well."""
    service.objects = {key: data for key, data in service.objects.items() if "_versions" not in key}
    with pytest.raises(lance_stream.NotFoundError):
        ds.append(ROW)
    assert not [key for key in service.objects if "/data/" in key]
