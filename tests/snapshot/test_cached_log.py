"""A cached log reads manifests once, and passes other calls to the table's log."""

import uuid

import pyarrow as pa

import lance_stream
from lance_stream.snapshot.cached_log import CachedLog


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
