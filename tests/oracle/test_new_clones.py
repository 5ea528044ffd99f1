"""Shallow clones that we make: written by both, killed at any step, cleaned up on both sides."""

import shutil
from collections.abc import Set
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    Dataset,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
    UntrustedLocationError,
    open_dataset,
)
from lance_stream.storage.local_store import LocalStore
from tests.faults.killed_changes import killed_at

pytestmark = pytest.mark.oracle


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(ds: Dataset | lance.LanceDataset) -> list[int]:
    return sorted(ds.to_table()["id"].to_pylist())


def of_both(uri: Path | str, broken_rules: Set[str] = frozenset()) -> list[int]:
    ours, theirs = open_dataset(uri), lance.dataset(str(uri))
    assert ours.version == theirs.version
    assert {finding.rule for finding in ours.verify()} == broken_rules
    assert ids(ours) == ids(theirs)
    return ids(ours)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with an index, a deleted row, three versions, and a branch of its second."""
    path = str(tmp_path / "a table")
    table = lance.write_dataset(rows(1, 2, 3), path, enable_stable_row_ids=True)
    table.create_scalar_index("id", "BTREE")
    table.create_branch("dev", 2).insert(rows(7))
    table.delete("id = 2")
    return path


@pytest.mark.parametrize("version", [1, "gold", ("dev", None), ("dev", 2), ("main", 3)])
def test_clones_equal_those_of_pylance(uri: str, tmp_path: Path, version: Any) -> None:
    """Base paths and indices must lead to the same files of the source."""
    table = lance.dataset(uri)
    table.tags.create("gold", ("dev", 3))
    table.shallow_clone(str(tmp_path / "theirs"), version)
    ours = open_dataset(uri).shallow_clone(tmp_path / "ours", version)
    theirs = open_dataset(tmp_path / "theirs")
    assert of_both(tmp_path / "ours") == of_both(tmp_path / "theirs")
    assert (ours.version, ours.branch) == (theirs.version, None)
    manifest, reference = ours.table.manifest, theirs.table.manifest
    assert sorted(manifest.base_paths, key=str) == sorted(reference.base_paths, key=str)
    assert manifest.index_section == reference.index_section
    assert list(manifest.fragments) == list(reference.fragments)
    for name in ("next_row_id", "max_fragment_id", "config", "schema", "reader_feature_flags"):
        assert getattr(manifest, name) == getattr(reference, name), name


@pytest.mark.parametrize("by_us", [True, False])
def test_both_write_clones_of_clones(uri: str, tmp_path: Path, by_us: bool) -> None:
    """Files then lie in three tables, each behind a base path."""
    open_dataset(uri).shallow_clone(tmp_path / "one", ("dev", None))
    lance.dataset(str(tmp_path / "one")).insert(rows(8))
    open_dataset(tmp_path / "one").delete("id = 1")
    if by_us:
        open_dataset(tmp_path / "one").shallow_clone(tmp_path / "two")
    else:
        lance.dataset(str(tmp_path / "one")).shallow_clone(str(tmp_path / "two"), 5)
    open_dataset(tmp_path / "two").branches.create("b")
    two = open_dataset(tmp_path / "two", branch="b").append(rows(9)).update({"id": "id * 10"})
    assert ids(two) == ids(lance.dataset(two.uri)) == [20, 30, 70, 80, 90]
    lance.dataset(str(tmp_path / "two")).optimize.compact_files()
    # pylance names the wrong folder for an index that a clone inherits and compaction rewrites.
    assert of_both(tmp_path / "two", broken_rules={"indices"}) == [2, 3, 7, 8]
    assert of_both(tmp_path / "one") == [2, 3, 7, 8]
    assert of_both(uri) == [1, 3]


def test_feeds_of_clones_begin_with_them(uri: str, tmp_path: Path) -> None:
    """Versions before the clone belong to its source and cannot be diffed."""
    clone = open_dataset(uri).shallow_clone(tmp_path / "clone")
    clone = clone.delete("id = 1").append(rows(9)).compact().restore(3).upsert(rows(3, 4), "id")
    before = clone.checkout(3).to_table(with_row_id=True)
    snapshot = dict(zip(before["_rowid"].to_pylist(), before["id"].to_pylist(), strict=True))
    for change in clone.changes(3).read_all().to_pylist():
        if change["_change_type"] in ("delete", "update_preimage"):
            assert snapshot.pop(change["_rowid"]) == change["id"]
        else:
            snapshot[change["_rowid"]] = change["id"]
    after = clone.to_table(with_row_id=True)
    assert snapshot == dict(zip(after["_rowid"].to_pylist(), after["id"].to_pylist(), strict=True))
    with pytest.raises(NotFoundError, match="version 2"):
        clone.changes(2)


def test_tags_keep_files_of_clones(uri: str, tmp_path: Path) -> None:
    """A cleanup of the source does not know its clones and would delete their files."""
    clone = open_dataset(uri).shallow_clone(tmp_path / "clone", 1)
    bare = open_dataset(uri).shallow_clone(tmp_path / "bare", 2, tag_source=False)
    ((name, tag),) = open_dataset(uri).tags.list().items()
    assert (tag.version, tag.metadata) == (1, {"clone": str(tmp_path / "clone")})
    assert lance.dataset(uri).tags.list()[name]["metadata"] == tag.metadata
    clone.overwrite(rows(5)).cleanup(retain_versions=1, delete_unverified=True)
    assert ids(open_dataset(uri, 1)) == [1, 2, 3]  # the clone's cleanup deletes no file of ours
    source = open_dataset(uri).overwrite(rows(6))
    source.branches.delete("dev")
    report = source.cleanup(retain_versions=1, delete_unverified=True)
    assert report.protected == {name: 1}
    assert of_both(tmp_path / "clone") == [5]
    assert ids(bare) == [1, 2, 3]  # whose files version 1 has, too
    source.tags.delete(name)
    source.cleanup(retain_versions=1, delete_unverified=True)
    with pytest.raises(NotFoundError, match="A tag on the cloned version"):
        open_dataset(tmp_path / "bare").to_table()


def clean(uri: Path | str) -> None:
    open_dataset(uri).cleanup(retain_versions=1, delete_unverified=True)


@pytest.mark.parametrize("by", ["us", "us, without a tag", "pylance"])
@pytest.mark.parametrize("start", [None, 1, ("dev", None), ("dev", 2)])
@pytest.mark.some_cases(one_in=4)
def test_nested_clones_outlive_their_sources(uri: str, tmp_path: Path, start: Any, by: str) -> None:
    """Each table with files that it needs has a tag for it."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    if by == "pylance":
        if isinstance(start, tuple):
            pytest.skip("a branch that pylance clones is tested with ours")
        lance.dataset(uri).shallow_clone(str(one), start or 3)
    else:
        open_dataset(uri).shallow_clone(one, start, tag_source=by == "us")
    first = ids(open_dataset(one))
    open_dataset(one).append(rows(8)).shallow_clone(two)
    open_dataset(two).append(rows(9)).shallow_clone(three)
    for value in (uri, one, two):
        for name, tag in open_dataset(value).tags.list().items():
            if tag.metadata.get("clone") != str(three):
                open_dataset(value).tags.delete(name)
        open_dataset(value).overwrite(rows(0))
        if value == uri and not isinstance(start, tuple):
            open_dataset(uri).branches.delete("dev")
        clean(value)
    if isinstance(start, tuple):
        with pytest.raises(InvalidInputError, match="because the tag"):
            open_dataset(uri).branches.delete("dev")
        open_dataset(uri, branch="dev").overwrite(rows(0))
        open_dataset(uri, branch="dev").cleanup(retain_versions=1, delete_unverified=True)
    assert of_both(three) == sorted([*first, 8, 9])
    open_dataset(three).compact()
    of_three = open_dataset(three).shallow_clone(tmp_path / "four")
    assert ids(of_three) == sorted([*first, 8, 9])
    if start == 1:  # later versions have an index, whose files stay where they are
        assert sum(len(open_dataset(value).tags.list()) for value in (uri, one, two)) == 3


def test_unknown_origins_cannot_be_tagged(uri: str, tmp_path: Path) -> None:
    """Without the origin's version, no tag can protect the files."""
    one = tmp_path / "one"
    lance.dataset(uri).shallow_clone(str(one), 3)
    open_dataset(one).append(rows(8)).cleanup(retain_versions=1)
    with pytest.raises(InvalidInputError, match="unknown which version of that table names them"):
        open_dataset(one).shallow_clone(tmp_path / "two")
    assert not (tmp_path / "two").exists()
    clone = open_dataset(one).shallow_clone(tmp_path / "two", tag_source=False)
    assert ids(clone) == [1, 3, 8]


def test_refused_clones_leave_no_tag(uri: str, tmp_path: Path) -> None:
    """The tag would hold files for a clone that does not exist."""
    (tmp_path / "file").write_text("")
    before = open_dataset(uri).tags.list()
    with pytest.raises(InvalidInputError, match="is not a folder"):
        open_dataset(uri).shallow_clone(tmp_path / "file")
    assert open_dataset(uri).tags.list() == before


@pytest.mark.parametrize("joins", [False, True])
def test_failed_clones_leave_no_tag(uri: str, tmp_path: Path, joins: bool) -> None:
    """The tag would keep a version for ever, unless another process completed the same clone."""

    def refuse(store: LocalStore, path: str, data: bytes) -> None:
        if path.startswith("_transactions/"):
            patched.stop()
            if joins:
                open_dataset(nested.uri).shallow_clone(tmp_path / "clone")
            raise PermissionError(path)
        real(store, path, data)

    nested = open_dataset(uri).shallow_clone(tmp_path / "nested")
    sources, real = [open_dataset(uri), nested], LocalStore.write
    before = [source.tags.list() for source in sources]
    patched = patch.object(LocalStore, "write", refuse)
    patched.start()
    with pytest.raises(PermissionError):
        nested.shallow_clone(tmp_path / "clone")
    new = [len(source.tags.list()) - len(old) for source, old in zip(sources, before, strict=True)]
    assert new == ([1, 1] if joins else [0, 0])
    if not joins:
        nested.shallow_clone(tmp_path / "clone")
    assert of_both(tmp_path / "clone") == [1, 3]


def test_joined_clones_check_their_tags(uri: str, tmp_path: Path) -> None:
    """The process that created them deletes them if it fails, perhaps before this one publishes."""

    def undo_first(store: LocalStore, path: str, data: bytes) -> None:
        for name in ds.tags.list() if path.startswith("_transactions/") else ():
            ds.tags.delete(name)
        real(store, path, data)

    ds, real = open_dataset(uri), LocalStore.write
    with killed_at(2, before=True):
        ds.shallow_clone(tmp_path / "clone")
    assert len(ds.tags.list()) == 1
    with patch.object(LocalStore, "write", undo_first):
        ds.shallow_clone(tmp_path / "clone")
    assert len(ds.tags.list()) == 1
    assert of_both(tmp_path / "clone") == [1, 3]


def test_read_only_sources_get_no_tag(uri: str, tmp_path: Path) -> None:
    """A tag needs a write to the source, so the user has to renounce it explicitly."""

    def refuse(store: LocalStore, path: str, *_: Any) -> Any:
        if store.root == uri:
            raise PermissionError(path)
        return real[path.count("?")](store, path, *_)

    real = [LocalStore.create_once]
    with patch.object(LocalStore, "create_once", refuse):
        with pytest.raises(PermissionError):
            open_dataset(uri).shallow_clone(tmp_path / "clone")
        assert [path for path in (tmp_path / "clone").rglob("*") if path.is_file()] == []
        open_dataset(uri).shallow_clone(tmp_path / "clone", tag_source=False)
    assert of_both(tmp_path / "clone") == [1, 3]


@pytest.mark.parametrize("before", [True, False])
def test_killed_clones_are_completed_next(uri: str, tmp_path: Path, before: bool) -> None:
    """At each step a killed process leaves other files."""
    number = 0
    while True:
        with killed_at(number, before=before) as result:
            open_dataset(uri).shallow_clone(tmp_path / "clone", 2)
        if len(result) > number:
            open_dataset(uri).cleanup(retain_versions=3, delete_unverified=True)
            if not list(Path(tmp_path, "clone").glob("_versions/*.manifest")):
                with pytest.raises(NotFoundError):
                    open_dataset(tmp_path / "clone")
                open_dataset(uri).shallow_clone(tmp_path / "clone", 2)
        assert of_both(tmp_path / "clone") == [1, 2, 3]
        (tag,) = open_dataset(uri).tags.list().values()
        assert tag.version == 2
        open_dataset(uri).tags.delete(tag.name)
        shutil.rmtree(tmp_path / "clone")
        if len(result) <= number:
            break
        number += 1
    assert number >= 4


def test_impossible_clones_are_refused(uri: str, tmp_path: Path) -> None:
    """A clone must never overwrite a table, nor refer to one that others cannot reach."""
    ds = open_dataset(uri)
    lance.write_dataset(rows(9), str(tmp_path / "taken"))
    lance_stream.create_dataset("memory://source-of-clone", rows(1))
    for attempt, error, match in (
        (
            lambda: ds.shallow_clone(tmp_path / "taken"),
            InvalidInputError,
            "already exists at .*, at version 1",
        ),
        (lambda: ds.shallow_clone(uri), InvalidInputError, "already"),
        (lambda: ds.shallow_clone(f"{uri}/tree/new"), InvalidInputError, "create a branch"),
        (lambda: ds.shallow_clone(tmp_path / "x", 9), NotFoundError, "no version 9"),
        (lambda: ds.shallow_clone("memory://x"), UntrustedLocationError, "disk"),
        (lambda: ds.shallow_clone("ftp://x/y"), UnsupportedFeatureError, "ftp"),
        (lambda: ds.shallow_clone("s3://bucket/x"), UntrustedLocationError, "disk"),
        (
            lambda: open_dataset("memory://source-of-clone").shallow_clone(tmp_path / "x"),
            UntrustedLocationError,
            "memory",
        ),
    ):
        with pytest.raises(error, match=match):
            attempt()
    assert not (tmp_path / "x").exists()
    assert ds.tags.list() == {}
