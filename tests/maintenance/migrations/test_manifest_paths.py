"""Manifests of scheme V1 renamed to V2: killed at any step, beside writers, by both programs."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest

from lance_stream import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    migrate_manifest_paths,
    open_dataset,
)
from lance_stream.maintenance.migrations import manifest_paths
from lance_stream.storage.local_store import LocalStore
from lance_stream.table.paths import NamingScheme, manifest_path, parse_manifest_name
from tests.faults.killed_changes import killed_at

pytestmark = pytest.mark.oracle


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of four versions with V1 names, a tag, and a detached version."""
    path = str(tmp_path / "t")
    for number in range(4):
        lance.write_dataset(rows(number), path, mode="append", enable_v2_manifest_paths=False)
    lance.dataset(path).tags.create("gold", 2)
    assert {entry.name for entry in Path(path, "_versions").glob("*.manifest")} == {
        f"{number}.manifest" for number in range(1, 5)
    }
    return path


def schemes(uri: str) -> set[NamingScheme]:
    names = (path.name for path in Path(uri, "_versions").iterdir())
    return {name.scheme for name in map(parse_manifest_name, names) if name is not None}


def read_by_both(uri: str) -> dict[int, list[int]]:
    ours = {
        version.version: open_dataset(uri, version.version).to_table()["id"].to_pylist()
        for version in open_dataset(uri).versions()
    }
    for version, ids in ours.items():
        assert lance.dataset(uri, version=version).to_table()["id"].to_pylist() == ids
    assert lance.dataset(uri).version == max(ours)
    assert open_dataset(uri, "gold").version == lance.dataset(uri, version="gold").version == 2
    return ours


def test_renamed_tables_stay_writable(uri: str) -> None:
    """Both programs must read the same versions and append after the migration, also through an
    older handle.
    """
    before = read_by_both(uri)
    stale = open_dataset(uri)
    assert migrate_manifest_paths(uri) == 4
    assert schemes(uri) == {NamingScheme.V2}
    assert read_by_both(uri) == before
    assert migrate_manifest_paths(uri) == 0
    stale.append(rows(4))  # a writer that opened the table before
    lance.write_dataset(rows(5), uri, mode="append")
    assert schemes(uri) == {NamingScheme.V2}
    assert list(read_by_both(uri)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("by_us", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_killed_migrations_can_be_completed(uri: str, before: bool, by_us: bool) -> None:
    """Renaming is not atomic, so a kill at any step must leave what either program can finish."""
    expected = read_by_both(uri)
    number = 0
    while True:
        copy = f"{uri}-{number}"
        shutil.copytree(uri, copy)
        with killed_at(number, before=before) as result:
            migrate_manifest_paths(copy)
        if by_us:
            migrate_manifest_paths(copy)
        else:
            lance.dataset(copy, version=1).migrate_manifest_paths_v2()
        assert schemes(copy) == {NamingScheme.V2}
        assert read_by_both(copy) == expected
        if len(result) <= number:
            break
        number += 1
    assert number == 8


def test_interrupted_migrations_block_writes(uri: str) -> None:
    """With names of both schemes a writer could publish a version number twice."""
    with killed_at(3, before=True):
        migrate_manifest_paths(uri)
    assert schemes(uri) == {NamingScheme.V1, NamingScheme.V2}
    with pytest.raises(CorruptDataError, match="migrate_manifest_paths"):
        open_dataset(uri)
    with pytest.raises(ValueError, match="migrate_manifest_paths_v2"):
        lance.dataset(uri)
    assert migrate_manifest_paths(uri) == 3


def test_concurrent_versions_are_renamed_too(uri: str) -> None:
    """A writer may publish under the old scheme after the listing, and its version must not be
    lost.
    """
    old = Path(uri, "_versions/4.manifest").read_bytes()
    Path(uri, "_versions/4.manifest").unlink()
    real = LocalStore.delete

    def late(store: LocalStore, path: str) -> None:
        real(store, path)
        if path == "_versions/1.manifest":
            Path(uri, "_versions/4.manifest").write_bytes(old)

    with patch.object(LocalStore, "delete", late):
        assert migrate_manifest_paths(uri) == 4
    assert schemes(uri) == {NamingScheme.V2}
    assert list(read_by_both(uri)) == [1, 2, 3, 4]


def test_duplicate_version_numbers_are_kept(uri: str) -> None:
    """Renaming one over the other would destroy a version, so the user has to decide."""
    other = Path(uri, manifest_path(4, NamingScheme.V2))
    shutil.copy(Path(uri, "_versions/3.manifest"), other)
    with pytest.raises(CorruptDataError, match=r"version 4 of .* exists twice"):
        migrate_manifest_paths(uri)
    assert other.exists()
    assert Path(uri, "_versions/4.manifest").exists()
    other.unlink()
    migrate_manifest_paths(uri)
    assert list(read_by_both(uri)) == [1, 2, 3, 4]


def test_tables_with_manifest_stores_are_refused(uri: str, tmp_path: Path) -> None:
    """The store's items state paths of manifests, which a rename would break."""
    options: dict[str, Any] = {"manifest_store": f"sqlite://{tmp_path}/manifests.db"}
    with pytest.raises(InvalidInputError, match="leave_manifest_store"):
        migrate_manifest_paths(uri, options)
    open_dataset(uri, storage_options=options).append(rows(9))
    with pytest.raises(InvalidInputError, match="leave_manifest_store"):
        migrate_manifest_paths(uri)
    assert schemes(uri) == {NamingScheme.V1}
    with pytest.raises(NotFoundError, match="no dataset"):
        migrate_manifest_paths(tmp_path / "none")


def test_branches_and_clones_use_new_names(uri: str, tmp_path: Path) -> None:
    """A branch is created by us with today's names, whatever its parent has."""
    open_dataset(uri, 2).branches.create("dev")
    open_dataset(uri, 4).shallow_clone(tmp_path / "clone")
    open_dataset(uri, branch="dev").append(rows(9))
    for location in (f"{uri}/tree/dev", str(tmp_path / "clone")):
        assert schemes(location) == {NamingScheme.V2}
        assert migrate_manifest_paths(location) == 0
    assert migrate_manifest_paths(uri) == 4
    theirs = lance.dataset(uri).checkout_version(("dev", None))
    assert theirs.to_table()["id"].to_pylist() == [0, 1, 9]


def test_versions_renamed_meanwhile_are_others(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two migrations at the same time together rename each version once."""
    store = open_dataset(uri).table.store
    lists = [[4, 3, 2, 1], []]
    monkeypatch.setattr(manifest_paths, "_versions_to_rename", lambda *_, **__: lists.pop(0))
    assert manifest_paths._rename(store, 3)
    assert not manifest_paths._rename(store, 3)
    assert migrate_manifest_paths(uri) == 3
    assert schemes(uri) == {NamingScheme.V2}
