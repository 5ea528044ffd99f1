"""The manifests that a process remembers are checked against the files, and bounded in number."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lance_stream.commit import manifest_files
from lance_stream.commit.manifest_files import TAIL_BYTES, ManifestCache
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import NotFoundError
from lance_stream.storage.locations import open_store
from lance_stream.table.manifest import decode_manifest, encode_manifest
from lance_stream.table.paths import manifest_path
from tests.commit.tables import append, commit_to, create, make_store
from tests.contracts.watched_stores import WatchedStore


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> ManifestCache:
    fresh = ManifestCache()
    monkeypatch.setattr(manifest_files, "MANIFESTS", fresh)
    return fresh


def calls_of_a_look(log: ObjectStoreLog) -> list[str]:
    store = WatchedStore(log.store)
    ObjectStoreLog(store).read_latest()
    return [call for call, _ in store.calls]


def test_our_commits_are_not_reread() -> None:
    """A stream that writes reads back its own version before every batch."""
    log = create(3)
    manifest = commit_to(log, append(1, 3))
    assert calls_of_a_look(log) == ["list_files", "read_ranges"]
    assert log.read_latest() is manifest
    assert decode_manifest(log.store.read(manifest_path(2))) == manifest


def test_another_writers_version_is_read_once(memory: ManifestCache) -> None:
    """Large manifests take seconds to read and decode."""
    log = create(3)
    data = log.store.read(manifest_path(1))
    other = replace(decode_manifest(data), version=2, transaction_file="1-x.txn")
    assert log.publish(2, encode_manifest(other))
    assert calls_of_a_look(log) == ["list_files", "read"]
    assert calls_of_a_look(log) == ["list_files", "read_ranges"]


def test_commits_reuse_the_previous_fragments() -> None:
    """Decoding fragments again at every commit would cost time in proportion to the table."""
    log = create(*[1] * 500)
    opened = log.read_latest()
    _ = opened.fragments.numbers
    manifest = commit_to(log, append(1, 3))
    again = log.read_latest()
    assert again is manifest
    assert "numbers" in again.fragments.__dict__
    assert again.fragments.num_decoded <= 501


def test_recreated_tables_are_read_again(tmp_path: Path) -> None:
    """The new table has the same path, version and length of manifest as the old one."""
    log = create(*[2] * 2000, store=open_store(tmp_path / "t"))
    old = log.read_latest()
    assert (tmp_path / "t" / manifest_path(1)).stat().st_size > TAIL_BYTES
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(NotFoundError):
        log.read_latest()
    create(*[2] * 2000, store=open_store(tmp_path / "t"))
    new = log.read_latest()
    assert new.transaction_file != old.transaction_file
    assert new.fragments != old.fragments


@pytest.mark.parametrize("change", [b"", b"more"])
def test_manifests_of_another_length_are_reread(change: bytes) -> None:
    """A manifest that was truncated or extended must be reported instead of being answered from
    memory.
    """
    log = create(3)
    path = manifest_path(1)
    data = log.store.read(path)
    log.store.write(path, data + change if change else data[:-1])
    store = WatchedStore(log.store)
    with pytest.raises(Exception, match="manifest"):
        ObjectStoreLog(store).read_latest()
    assert [call for call, _ in store.calls] == ["list_files", "read_ranges", "read"]


def test_manifests_without_unique_parts_are_forgotten(
    memory: ManifestCache,
) -> None:
    """Such a manifest looks the same as that of a re-created table."""
    store = make_store()
    for changes in ({"timestamp_nanos": None}, {"transaction_file": ""}):
        manifest = replace(create(3).read_latest(), **changes)
        data = encode_manifest(manifest)
        store.write("m", data)
        memory.remember(store, "m", manifest, data)
        assert memory.find(store, "m") is None


def test_manifests_with_uninformative_ends_are_forgotten(memory: ManifestCache) -> None:
    """Only the end of a manifest is read to recognize it, and here it does not identify the
    version.
    """
    store = make_store()
    manifest = replace(
        create(3).read_latest(), unknown=b"\xfa\x0f" + b"\x80\x80\x04" + b"x" * TAIL_BYTES
    )
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    store.write("m", data)
    memory.remember(store, "m", manifest, data)
    assert memory.find(store, "m") is None


def test_two_manifests_per_table_are_remembered(memory: ManifestCache) -> None:
    """A writer needs the version that it planned on and the newest, and more would only use
    memory.
    """
    log = create(3)
    commit_to(log, append(1, 3))
    commit_to(log, append(2, 3))
    cached = [memory.find(log.store, manifest_path(version)) for version in (1, 2, 3)]
    assert [value is not None for value in cached] == [False, True, True]


@pytest.mark.parametrize("spare", [0, 1, -1])
def test_new_manifests_replace_old_ones(spare: int) -> None:
    """If both do not fit, the newest is the one that the next batch needs."""
    log = create(3)
    commit_to(log, append(1, 3))
    paths = [manifest_path(version) for version in (1, 2)]
    manifests, data = [log.read(1), log.read(2)], [log.store.read(path) for path in paths]
    memory = ManifestCache(max_bytes=sum(map(len, data)) + spare)
    for path, manifest, content in zip(paths, manifests, data, strict=True):
        memory.remember(log.store, path, manifest, content)
    cached = [memory.find(log.store, path) is not None for path in paths]
    assert cached == [spare >= 0, True]


def test_an_unchanged_etag_avoids_a_read(
    memory: ManifestCache,
) -> None:
    """Where the listing states the known ETag, a cached manifest needs no request."""
    store = WatchedStore(create(3).store)
    path = manifest_path(1)
    manifest, data = ObjectStoreLog(store).read_latest(), store.read(path)
    store.calls.clear()
    memory.remember(store, path, manifest, data, "tag")
    assert memory.find(store, path, "tag") is manifest
    assert store.calls == []
    assert memory.find(store, path, "another") is manifest
    assert memory.find(store, path) is manifest
    assert [call for call, _ in store.calls] == ["read_ranges", "read_ranges"]
    assert memory.find(store, path, "another") is manifest, "what is said of it is learnt"
    assert len(store.calls) == 2
    store.write(path, data[:-1])
    assert memory.find(store, path, "a third") is None


def test_remembered_tables_and_bytes_are_bounded() -> None:
    """A driver with many tables must not hold all of their manifests, but keep those in use."""
    logs = [create(3) for _ in range(4)]
    manifests = [log.read_latest() for log in logs]
    data = [log.store.read(manifest_path(1)) for log in logs]

    def remembered(memory: ManifestCache) -> list[bool]:
        for log, manifest, value in zip(logs, manifests, data, strict=True):
            memory.remember(log.store, manifest_path(1), manifest, value)
            # The first table is looked at all the time.
            memory.find(logs[0].store, manifest_path(1))
        return [memory.find(log.store, manifest_path(1)) is not None for log in logs]

    size = max(map(len, data))
    assert remembered(ManifestCache()) == [True, True, True, True]
    assert remembered(ManifestCache(max_tables=2)) == [True, False, False, True]
    assert remembered(ManifestCache(max_bytes=2 * size + size // 2)) == [True, False, False, True]
    assert remembered(ManifestCache(max_bytes=size // 2)) == [False] * 4
