"""A cached log reads manifests once, and passes other calls to the table's log."""

import uuid
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import NotFoundError
from lance_stream.snapshot import cached_log
from lance_stream.snapshot.cached_log import CachedLog
from lance_stream.table.manifest import Manifest


def test_cached_logs_change_the_versions_themselves() -> None:
    """A cleanup that uses the cached log removes versions and puts one back, which the cache
    must not hide.
    """
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    for number in range(3):
        ds = ds.append(pa.table({"id": [number]}))
    log = CachedLog(ds.table.log, ds.table.manifest)
    data = ds.table.store.read(log.manifest_path(2))
    log.remove([1, 2])
    assert log.versions() == ds.table.log.versions() == [3, 4]
    log.undo_remove(2, data)
    assert log.versions() == ds.table.log.versions() == [2, 3, 4]
    assert log.find(2) == log.read(2)
    assert not log.has(1)
    assert log.latest() == log.read_latest().version == 4


@pytest.mark.parametrize(
    ("max_manifests", "max_fragments", "cached"),
    [
        (6, 99, [1, 2, 3, 4, 5, 6]),
        (5, 99, [2, 3, 4, 5, 6]),
        (6, 14, [3, 4, 5, 6]),
        (6, 0, [3, 4, 5, 6]),
    ],
)
def test_the_last_manifests_stay_cached(
    max_manifests: int, max_fragments: int, cached: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests of many fragments are large, but neighbours are compared with each other."""
    monkeypatch.setattr(cached_log, "MAX_CACHED_MANIFESTS", max_manifests)
    monkeypatch.setattr(cached_log, "MAX_CACHED_FRAGMENTS", max_fragments)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    first = ds.table.manifest
    for number in range(5):
        ds = ds.append(pa.table({"id": [number]}))
    log = CachedLog(ds.table.log, first)
    manifests = {version: log.read(version) for version in range(1, 7)}
    assert [len(manifest.fragments) for manifest in manifests.values()] == [0, 1, 2, 3, 4, 5]
    assert list(log._manifests) == cached
    assert log._num_fragments == sum(version - 1 for version in cached)


class Manifests:
    """Stands in for a log, and records what is read of it."""

    def __init__(self, newest: Manifest, missing: tuple[int, ...] = ()) -> None:
        self.newest, self.missing = newest, missing
        self.store = SimpleNamespace(num_readers=2)
        self.reads: list[tuple[int, str]] = []

    def read(self, version: int, etag: str) -> Manifest:
        self.reads.append((version, etag))
        if version in self.missing:
            raise NotFoundError(str(version))
        return replace(self.newest, version=version)


def test_manifests_are_read_once() -> None:
    """Each costs a request; an ETag tells whether a cached copy on disk is the same."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    inner = Manifests(replace(ds.table.manifest, version=9))
    log = CachedLog(inner, inner.newest, {3: "listed", 4: "listed"})  # type: ignore[arg-type]  # as much of a log as is used
    for version, etag in ((9, ""), (3, ""), (4, "given"), (5, "given"), (6, "")):
        for _ in range(2):
            assert log.read(version, etag).version == version
    assert inner.reads == [(3, "listed"), (4, "given"), (5, "given"), (6, "")]


def test_removed_manifests_are_not_prefetched() -> None:
    """A cleanup has removed them since they were listed, which the reader finds out."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    inner = Manifests(replace(ds.table.manifest, version=9), missing=(3,))
    log = CachedLog(inner, inner.newest)  # type: ignore[arg-type]  # as much of a log as is used
    log.prefetch([2, 3, 4])
    assert sorted(log._manifests) == [2, 4, 9]
    with pytest.raises(NotFoundError):
        log.read(3)
