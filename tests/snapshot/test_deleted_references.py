"""Tags and branches that are deleted while they are listed."""

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import NotFoundError
from lance_stream.storage.memory_store import MemoryStore


@pytest.mark.parametrize("kind", ["tags", "branches"])
@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "unreadable"])
def test_references_may_disappear_during_a_listing(
    kind: str, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may delete one at any moment, which is no error. But a cleanup that overlooks
    an existing one removes the files of its version.
    """
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"a": [1]}))
    for name in ("first", "second"):
        getattr(ds, kind).create(name)
    read: Callable[[MemoryStore, str], bytes] = MemoryStore.read

    def read_late(store: MemoryStore, path: str) -> Any:
        if path.endswith("first.json"):
            if is_deleted:
                store.delete(path)
            raise NotFoundError(path)
        return read(store, path)

    monkeypatch.setattr(MemoryStore, "read", read_late)
    if is_deleted:
        assert list(getattr(ds, kind).list()) == ["second"]
    else:
        with pytest.raises(NotFoundError):
            getattr(ds, kind).list()
