"""Manifests that remain protect their files, and stop a cleanup if they cannot be read."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

import lance_stream
from lance_stream import (
    BadDataError,
    CorruptDataError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.manifests import (
    check_are_manifests,
    read_detached,
    read_newest_first,
    read_other_branches,
)
from lance_stream.storage.store import StoredFile
from lance_stream.table.manifest import encode_manifest
from tests.contracts.watched_stores import WatchedStore
from tests.maintenance.cleanup.tables import (
    ALL,
    busy_table,
    in_days,
    names_of_data,
    on,
    paths_of,
    rows,
)


def test_detached_versions_keep_their_files() -> None:
    """Lance's detached versions are not in the sequence of versions, but people read them."""
    ds = busy_table()
    store = ds.table.store
    manifest = ds.checkout(3).table.manifest
    number = (1 << 63) + 12345
    store.write(
        f"_versions/d{number}.manifest",
        encode_manifest(replace(manifest, version=number)),
    )
    ds.cleanup(retain_versions=1)
    assert names_of_data(manifest) <= set(paths_of(ds))


def test_temporary_manifests_are_not_unknown() -> None:
    """Writers use a hidden name before they rename, and old leftovers must not stop the cleanup."""
    ds = busy_table()
    ds.table.store.write("_versions/.v3.manifest", b"half")
    ds.cleanup(retain_versions=1)
    assert "_versions/.v3.manifest" in paths_of(ds)


@pytest.mark.parametrize(
    ("path", "content", "match"),
    [
        ("_versions/v3.manifest", b"", "looks like a manifest"),
        (f"_versions/d{(1 << 63) + 5}.manifest", b"", "shorter than its footer"),
        ("its newest", b"", "shorter than its footer"),
    ],
)
@pytest.mark.parametrize("cleaned", [None, "dev", "other"])
def test_unreadable_branches_stop_the_cleanup(
    cleaned: str | None, path: str, content: bytes, match: str
) -> None:
    """Branches share files, so the versions of one may need files of another."""
    ds = busy_table()
    for name in ("dev", "other"):
        ds.branches.create(name)
        lance_stream.open_dataset(ds.uri, branch=name).append(rows(77))
    opened = lance_stream.open_dataset(ds.uri, branch=cleaned)
    bad = lance_stream.open_dataset(ds.uri, branch="dev").table.store
    newest = min(file.path for file in bad.list("_versions"))
    bad.write(newest if path == "its newest" else path, content)
    before = paths_of(ds)
    with pytest.raises(BadDataError, match=match):
        opened.cleanup(retain_versions=1)
    assert paths_of(ds) == before


def test_detached_branch_versions_keep_files() -> None:
    """A detached version of a branch needs files of the main one, which no other version names."""
    ds = busy_table()
    ds.checkout(3).branches.create("dev")
    branch = lance_stream.open_dataset(ds.uri, branch="dev")
    manifest = branch.table.manifest
    number = (1 << 63) + 12345
    branch.table.store.write(
        f"_versions/d{number}.manifest", encode_manifest(replace(manifest, version=number))
    )
    branch.overwrite(rows(1)).cleanup(retain_versions=1)
    needed = names_of_data(ds.checkout(3).table.manifest)
    ds.cleanup(retain_versions=1)
    assert needed
    assert needed <= set(paths_of(ds))


@pytest.mark.parametrize("version", [2, 8])
def test_unreadable_versions_stop_the_cleanup(version: int) -> None:
    """Nobody can tell which files such a version needs."""
    ds = busy_table()
    path = ds.table.log.manifest_path(version)
    manifest = ds.table.log.read(version)
    flagged = replace(manifest, writer_feature_flags=1 << 40)
    sound = ds.table.store.read(path)
    for bad, error in (
        (encode_manifest(flagged), UnsupportedFeatureError),
        (sound[:-5], CorruptDataError),
    ):
        ds.table.store.write(path, bad)
        before = paths_of(ds)
        with pytest.raises(error):
            cleanup(ds.table, replace(ALL, retain_versions=2), environment=in_days(30))
        assert paths_of(ds) == before


def test_missing_manifests_must_be_unlisted() -> None:
    """A version that is listed but missing may need any file; one that another cleanup has removed
    since needs none.
    """
    log = busy_table().table.log
    listed = log.versions()
    log.store.delete(log.manifest_path(3))
    manifests = list(read_newest_first(log, listed))
    assert [manifest.version for manifest in manifests] == [
        version for version in reversed(listed) if version != 3
    ]

    class StaleLog:
        """A log that still lists the version."""

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

        def versions(self) -> list[int]:
            return list(listed)

    with pytest.raises(CorruptDataError, match=r"version 3 of .* is listed, but its manifest"):
        list(read_newest_first(StaleLog(), listed))  # type: ignore[arg-type]  # has only what is called


class FarStore(WatchedStore):
    """A store that many threads read at once, as an object store."""

    num_readers = 64


def test_distant_manifests_are_read_in_parallel() -> None:
    """A stream leaves a version for each batch, and reading each manifest costs a round trip."""
    ds, both, reads = busy_table(), threading.Barrier(2), count()

    def meet(call: str, path: str) -> None:
        if call == "read" and path.startswith("_versions/") and next(reads) in (2, 3):
            both.wait(10)  # neither goes on before the other is there

    report = on(ds, FarStore(ds.table.store, before=meet)).cleanup(retain_versions=1)
    assert report.versions == tuple(range(1, ds.version))
    assert next(reads) > 3


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_versions_removed_meanwhile_are_left_out(removed: int) -> None:
    """Another cleanup removes them; in place of the newest there is a newer one."""
    ds = busy_table()
    log = ds.table.log
    log.store.delete(log.manifest_path(removed))
    numbers = [manifest.version for manifest in read_newest_first(log, [1, 2, 3])]
    newest = ds.version if removed == 3 else 3
    assert numbers == [newest, *(number for number in (2, 1) if number != removed)]


@pytest.mark.parametrize("is_removed", [True, False])
def test_missing_detached_versions_must_be_gone(is_removed: bool) -> None:
    """One that was removed since it was listed needs no file; the store may also be wrong."""
    store = busy_table().table.store
    path = f"_versions/d{(1 << 63) + 5}.manifest"
    store.write(path, b"")

    def fail(call: str, name: str) -> None:
        if call == "read" and name == path:
            if is_removed:
                store.delete(path)
            raise NotFoundError(path)

    watched = WatchedStore(store, before=fail)
    if is_removed:
        assert list(read_detached(watched)) == []
    else:
        with pytest.raises(NotFoundError, match=path):
            list(read_detached(watched))


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("v3.manifest", True),
        ("1.manifest", False),
        (f"d{(1 << 63) + 5}.manifest", False),
        ("below/v3.manifest", False),
        (".v3.manifest", False),
        ("v3.manifest.tmp", False),
        ("1.manifest-2f1b3f4e-0000-0000-0000-000000000000", False),
    ],
)
def test_only_unknown_manifests_are_refused(name: str, is_refused: bool) -> None:
    """A file of a folder below is no version of this table, and a leftover is none at all."""
    store = busy_table().table.store
    with pytest.raises(CorruptDataError, match=name) if is_refused else nullcontext():
        check_are_manifests(store, [f"_versions/{name}"])


@pytest.mark.parametrize("has_file", [True, False])
def test_branches_removed_meanwhile_need_nothing(has_file: bool) -> None:
    """Without a branch file, the versions were being deleted; with one, they are lost."""
    ds = busy_table()
    ds.branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev")
    if not has_file:
        ds.table.store.delete("_refs/branches/dev.json")
    listed = ds.table.refs.root.list("tree")
    for file in dev.table.store.list("_versions"):
        dev.table.store.delete(file.path)

    class StaleStore(WatchedStore):
        """A store whose listing of branches was made before."""

        def list(self, folder: str = "") -> list[StoredFile]:
            return listed if folder == "tree" else super().list(folder)

    branches = read_other_branches(on(ds, StaleStore(ds.table.store)).table.refs)
    if has_file:
        with pytest.raises(CorruptDataError, match="should have the versions of a branch"):
            list(branches)
    else:
        assert list(branches) == []
