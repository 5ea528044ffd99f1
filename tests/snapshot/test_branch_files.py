"""The files of branches: their content, and which of the files in their folder are theirs."""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.snapshot import references
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.references import (
    Branch,
    _as_branch,
    branch_uri,
    create_branch_file,
    list_branches,
    other_branches,
)
from lance_stream.snapshot.resolving import _uri_of_branch, checkout
from lance_stream.table.manifest import encode_manifest
from lance_stream.verbs.create import plan_table


@pytest.mark.parametrize(
    "changes",
    [
        {"parentVersion": None},
        {"parentVersion": "3"},
        {"parentVersion": True},
        {"parentBranch": 7},
        {"metadata": []},
        {"metadata": None},
    ],
)
def test_invalid_branch_files_are_corrupt(changes: dict[str, Any]) -> None:
    """The version at which a branch starts determines which files a cleanup keeps."""
    content = {"parentVersion": 3, "parentBranch": "main", "createAt": 5, "metadata": {"a": "b"}}
    branch = _as_branch("dev", content)
    assert (branch.parent, branch.metadata) == (None, {"a": "b"})
    assert _as_branch("dev", {"parentVersion": 3}).metadata == {}
    assert _as_branch("dev", {**content, "parentBranch": "x"}).parent == "x"
    with pytest.raises(CorruptDataError, match="does not state the version and branch"):
        _as_branch("dev", {**content, **changes})
    with pytest.raises(CorruptDataError, match="is not a JSON object"):
        _as_branch("dev", list(content))


@pytest.fixture
def ds() -> Dataset:
    """A table with a branch."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [1]}))
    ds.branches.create("dev")
    return ds


def test_damaged_branch_files_are_skipped(ds: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    """A listing shows the others; whoever removes files must know of each branch."""
    ds.table.store.write("_refs/branches/a note.txt", b"?")
    assert list(list_branches(ds.table.refs)) == ["dev"]
    assert [*other_branches(ds.table.refs)] == [("dev", True)]
    assert caplog.text == ""
    ds.table.store.write("_refs/branches/bad.json", b"?")
    assert list(list_branches(ds.table.refs)) == ["dev"]
    assert "skipped the branch file" in caplog.text
    with pytest.raises(CorruptDataError, match=r"bad.json, which should .* cannot be read"):
        list(other_branches(ds.table.refs))


def test_folders_without_manifests_are_no_branches(ds: Dataset) -> None:
    """A table's own `_versions` in its folder of branches belongs to none."""
    ds.table.store.write("tree/_versions/1.manifest", b"?")
    ds.table.store.write("tree/x/data/1.lance", b"?")
    assert [*other_branches(ds.table.refs)] == [("dev", True)]
    ds.table.store.write("tree/x/_versions/1.manifest", b"?")
    assert sorted(other_branches(ds.table.refs)) == [("dev", True), ("x", False)]


@pytest.mark.parametrize(
    ("created_at", "seconds"), [(None, 0), (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600)]
)
def test_branch_files_state_their_time(
    ds: Dataset, created_at: datetime | None, seconds: int
) -> None:
    """The reference reads a number, which old writers left out."""
    assert create_branch_file(ds.table.refs, Branch("new", None, 1, created_at), 7)
    content = json.loads(ds.table.store.read("_refs/branches/new.json"))
    assert (content["createAt"], content["manifestSize"]) == (seconds, 7)
    assert not create_branch_file(ds.table.refs, Branch("new", None, 1), 7)


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/disk/t", "/disk", "/disk"),
        ("/t", "", "/"),
        ("bucket/t", "/bucket", "bucket"),
        ("bucket", "", ""),
    ],
)
def test_roots_keep_their_form(root: str, path: str, expected: str) -> None:
    """Roots in a bucket do not start with a slash."""
    assert references._root_as_in(SimpleNamespace(root=root), path) == expected  # type: ignore[arg-type]  # as much of a store as is used


@pytest.mark.parametrize(
    ("uri", "branch", "expected"),
    [
        ("/a/t", None, "/a/t"),
        ("/a/t", "main", "/a/t"),
        ("/a/t/", "dev", "/a/t/tree/dev"),
        ("/a/what?/t", "dev", "/a/what?/t/tree/dev"),
        ("s3+ddb://b/t?ddbTableName=x", "dev", "s3+ddb://b/t/tree/dev?ddbTableName=x"),
        ("s3+ddb://b/t?ddbTableName=x", None, "s3+ddb://b/t?ddbTableName=x"),
    ],
)
def test_branches_have_locations(ds: Dataset, uri: str, branch: str | None, expected: str) -> None:
    """A query follows the path only in the URIs that have one."""
    assert branch_uri(uri, branch) == expected
    refs = ds.table.refs
    other = refs.of(None if branch == "main" else branch)
    assert _uri_of_branch(uri.rstrip("/"), refs, other) == expected
    if branch == "dev":
        assert _uri_of_branch(expected, other, refs) == uri.rstrip("/")
        assert _uri_of_branch("a/link/to/it", other, refs) == refs.store.uri


def test_missing_branches_list_the_others(ds: Dataset, tmp_path: Path) -> None:
    """The name is usually misspelt."""
    with pytest.raises(NotFoundError, match="no branch 'dew'; existing branches: dev"):
        ds.checkout(("dew", None))
    bare = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    with pytest.raises(NotFoundError, match="no branch 'dev'; it has no branches"):
        bare.checkout(("dev", None))
    for table, names in ((ds, "dev"), (bare, "none")):
        with pytest.raises(NotFoundError) as raised:
            lance_stream.open_dataset(f"{table.uri}/tree/dew")
        assert f"has no branch 'dew'; existing branches: {names}" in raised.value.__notes__[0]


@pytest.mark.parametrize("version", [0, -1, True, 1.5, ("dev",), ("dev", 1, 2), ("dev", 0), [1]])
def test_versions_are_numbers_from_one(ds: Dataset, version: Any) -> None:
    """Any other value is a mistake, and must not open the newest version."""
    with pytest.raises(InvalidInputError, match="a version must be a whole number from 1"):
        ds.checkout(version)


def test_planned_tables_have_no_version(tmp_path: Path) -> None:
    """Another writer may create the table in the meantime."""
    table = plan_table(tmp_path / "t", pa.schema([("id", pa.int64())]))
    assert checkout(table, None) is table
    with pytest.raises(NotFoundError):
        checkout(table, 1)
    created = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    assert checkout(table, None).version == created.version
    for file in created.table.store.list():
        created.table.store.delete(file.path)
    for open_newest in (
        lambda: checkout(created.table, None),
        lambda: newest_version_of(created.table),
    ):
        with pytest.raises(NotFoundError):
            open_newest()


@pytest.mark.parametrize(("first", "second"), [(None, 5_000_000_999), (5_000_000_999, None)])
def test_versions_without_time_are_the_oldest(
    first: int | None, second: int | None, ds: Dataset
) -> None:
    """Old writers stated none, so their versions existed at any time."""
    ds = ds.append(pa.table({"id": [2]}))
    for version, nanos in ((1, first), (2, second)):
        manifest = replace(ds.table.log.read(version), timestamp_nanos=nanos)
        ds.table.store.write(ds.table.log.manifest_path(version), encode_manifest(manifest))
    ds = lance_stream.open_dataset(ds.uri)
    at = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert ds.checkout(at).version == 2
    earlier = datetime(1970, 1, 1, 0, 0, 4, 999_999, tzinfo=UTC)
    assert ds.checkout(earlier).version == (1 if first is None else 2)
    assert [info.timestamp for info in ds.versions()] == [
        None if nanos is None else at for nanos in (first, second)
    ]


def test_versions_removed_meanwhile_have_no_time(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleanup has removed all that were listed."""
    log = ds.table.log
    monkeypatch.setattr(type(log), "versions", lambda *_: [8, 9])
    with pytest.raises(NotFoundError, match=r"is version \?, committed at an unknown time"):
        ds.checkout(datetime(2026, 1, 1, tzinfo=UTC))
