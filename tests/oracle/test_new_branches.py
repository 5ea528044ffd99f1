"""Branches that we create and delete: used by both writers, killed at any step, and cleaned up."""

from collections.abc import Set
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError, open_dataset
from lance_stream.maintenance.consumers import record_progress
from lance_stream.snapshot.tag_files import HOLD_PREFIX
from lance_stream.storage.local_store import LocalStore
from tests.faults.killed_changes import killed_at

pytestmark = pytest.mark.oracle


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(ds: Dataset | lance.LanceDataset) -> list[int]:
    return sorted(ds.to_table()["id"].to_pylist())


def of_both(
    uri: str, branch: str | None, version: int | None = None, broken_rules: Set[str] = frozenset()
) -> list[int]:
    theirs = lance.dataset(uri).checkout_version((branch, version))
    ours = open_dataset(uri, version, branch=branch or "main")
    assert (ours.version, ours.branch) == (theirs.version, branch)
    assert {finding.rule for finding in ours.verify()} == broken_rules
    assert ids(ours) == ids(theirs)
    return ids(ours)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with an index, a deleted row and three versions."""
    path = str(tmp_path / "a table")
    table = lance.write_dataset(rows(1, 2, 3), path, enable_stable_row_ids=True)
    table.create_scalar_index("id", "BTREE")
    table.delete("id = 2")
    return path


def test_pylance_continues_a_branch_of_ours(uri: str) -> None:
    """Indices and files of the main branch must be reachable from the new one."""
    branch = open_dataset(uri).branches.create("dev")
    assert branch == open_dataset(uri).branches.list()["dev"]
    assert (branch.parent, branch.parent_version) == (None, 3)
    theirs = lance.dataset(uri).checkout_version(("dev", None))
    assert theirs.to_table(filter="id = 3").num_rows == 1  # by the index of the main branch
    theirs.insert(rows(10))
    theirs.delete("id = 1")
    deep = theirs.create_branch("dev/deep", ("dev", None))
    deep.insert(rows(100))
    theirs.optimize.compact_files()
    # pylance names the wrong folder for an index that a branch inherits and compaction rewrites.
    assert of_both(uri, "dev", broken_rules={"indices"}) == [3, 10]
    assert of_both(uri, "dev/deep") == [3, 10, 100]
    assert of_both(uri, None) == [1, 3]


def test_branch_files_equal_pylances(uri: str) -> None:
    """pylance lists and protects branches by these files."""
    ours = open_dataset(uri)
    ours.branches.create("a")
    lance.dataset(uri).create_branch("b")
    open_dataset(uri, branch="b").branches.create("b/c")
    lance.dataset(uri).create_branch("b/d", ("b", None))
    branches = lance.dataset(uri).branches.list()
    for created, reference in (("a", "b"), ("b/c", "b/d")):
        for key in ("parent_branch", "parent_version", "manifest_size", "metadata"):
            assert branches[created][key] == branches[reference][key], key
        assert [row[0] for row in branches[created]["branch_identifier"]] == [
            row[0] for row in branches[reference]["branch_identifier"]
        ]
    assert branches["b/c"]["branch_identifier"][0] == branches["b"]["branch_identifier"][0]
    assert sorted(path.name for path in Path(uri, "_refs/branches").iterdir()) == [
        "a.json",
        "b%2Fc.json",
        "b%2Fd.json",
        "b.json",
    ]


@pytest.mark.parametrize("version", [1, "gold", ("b", None), ("b", 4), ("main", 2)])
def test_a_branch_starts_where_pylances_would(uri: str, version: Any) -> None:
    """Versions, tags and pairs all name a start, with the same base paths."""
    table = lance.dataset(uri)
    table.create_branch("b").insert(rows(7))
    table.tags.create("gold", ("b", 4))
    table.create_branch("theirs", version)
    open_dataset(uri).branches.create("ours", version)
    assert of_both(uri, "ours") == of_both(uri, "theirs")
    ours, theirs = (open_dataset(uri, branch=name) for name in ("ours", "theirs"))
    for value in (ours, theirs):
        assert {base.id: base for base in value.table.manifest.base_paths} == {
            base.id: base for base in theirs.table.manifest.base_paths
        }
    branches = ours.branches.list()
    assert branches["ours"].parent == branches["theirs"].parent
    assert branches["ours"].parent_version == branches["theirs"].parent_version


def test_verbs_write_only_to_their_branch(uri: str) -> None:
    """Files in the main folder would be deleted by the main branch's cleanup."""
    main = open_dataset(uri)
    main.branches.create("dev", 1)
    dev = open_dataset(uri, branch="dev")
    dev = dev.append(rows(4)).delete("id = 1").update({"id": "id + 10"}, "id = 2")
    dev = dev.upsert(rows(4, 5), "id").add_columns({"twice": "id * 2"}).compact()
    dev = dev.rename_columns({"twice": "double"}).update_config({"owner": "me"})
    assert dev.changes(1).read_all().num_rows >= 5
    assert {row["id"]: row["double"] for row in dev.to_table().to_pylist()} == {
        3: 6, 4: 8, 5: 10, 12: 24
    }  # fmt: skip
    assert of_both(uri, "dev") == [3, 4, 5, 12]
    assert of_both(uri, "dev", 1) == [1, 2, 3]
    assert open_dataset(uri).version == 3
    assert of_both(uri, None) == [1, 3]
    snapshot = {row["_rowid"]: row["id"] for row in at(dev, 1)}
    for change in dev.changes(1).read_all().to_pylist():
        if change["_change_type"] in ("delete", "update_preimage"):
            assert snapshot.pop(change["_rowid"]) == change["id"]
        else:
            snapshot[change["_rowid"]] = change["id"]
    assert snapshot == {row["_rowid"]: row["id"] for row in at(dev, dev.version)}


def at(ds: Dataset, version: int) -> list[dict[str, Any]]:
    return ds.checkout(version).to_table(with_row_id=True).to_pylist()


def test_a_stream_continues_on_a_branch(uri: str) -> None:
    """The ledger and the remembered deletes are part of a branch; other config is not."""
    ds = lance_stream.create_dataset(f"{uri} 2", pa.schema([("id", pa.int64()), ("s", pa.int64())]))
    data = {"id": [1, 2], "s": [5, 5], "gone": [False, True]}
    ds = ds.upsert(pa.table(data), "id", "s", "gone", "gone", tombstones="7 days")
    ds = ds.update_config({"lance_stream.ledger.app": '{"batch": 4}', "owner": "me"})
    ds.branches.create("dev")
    dev = open_dataset(f"{uri} 2", branch="dev")
    assert (dev.ledger()["app"].batch_id, dev.config.get("owner")) == (4, None)
    late = pa.table({"id": [2, 3], "s": [4, 4]})
    assert ids(dev.upsert(late, "id", "s")) == [1, 3]
    assert ids(ds.upsert(late, "id", "s")) == [1, 3]
    clone = ds.shallow_clone(f"{uri} 3")
    assert ids(clone.upsert(late, "id", "s")) == [1, 3]


def test_deletes_survive_clones_of_pylances_branches(uri: str) -> None:
    """pylance copies the names of the files of remembered deletes to a branch, not the files."""
    ds = lance_stream.create_dataset(f"{uri} 2", pa.schema([("id", pa.int64()), ("s", pa.int64())]))
    data = {"id": [1, 2], "s": [5, 5], "gone": [False, True]}
    ds = ds.upsert(pa.table(data), "id", "s", "gone", "gone", tombstones="7 days")
    lance.dataset(ds.uri).create_branch("theirs", (None, ds.version))
    theirs = open_dataset(ds.uri, branch="theirs")
    theirs.branches.create("ours")
    late = pa.table({"id": [2, 3], "s": [4, 4]})
    assert ids(open_dataset(ds.uri, branch="ours").upsert(late, "id", "s")) == [1, 3]
    assert ids(theirs.shallow_clone(f"{uri} 3").upsert(late, "id", "s")) == [1, 3]


@pytest.mark.parametrize(
    ("name", "version", "error", "match"),
    [
        ("main", None, InvalidInputError, "always exists"),
        (None, None, InvalidInputError, "always exists"),
        (".x", None, InvalidInputError, "hidden"),
        ("a b", None, InvalidInputError, "cannot be the name of a branch"),
        ("b", None, InvalidInputError, "already exists: open it"),
        ("x", 9, NotFoundError, "has no version 9"),
        ("x", "gone", NotFoundError, "tag 'gone' does not exist"),
        ("x", ("y", None), NotFoundError, "no branch 'y'"),
    ],
)
def test_an_impossible_branch_leaves_nothing(
    uri: str, name: Any, version: Any, error: type[Exception], match: str
) -> None:
    """Remains would block the name for the next attempt."""
    lance.dataset(uri).create_branch("b")
    before = sorted(Path(uri).rglob("*"))
    with pytest.raises(error, match=match):
        open_dataset(uri).branches.create(name, version)
    assert [path for path in Path(uri).rglob("*") if path.is_file()] == [
        path for path in Path(uri).rglob("*") if path.is_file() and path in before
    ]


def test_missing_branches_list_the_existing_ones(uri: str) -> None:
    """The list shows a typing mistake at once."""
    open_dataset(uri).branches.create("dev")
    with pytest.raises(NotFoundError) as failure:
        open_dataset(f"{uri}/tree/dve")
    assert "has no branch 'dve'; existing branches: dev" in failure.value.__notes__[0]
    with pytest.raises(InvalidInputError, match="names a branch itself"):
        open_dataset(uri, "tag", branch="dev")


# --- delete


def test_deleted_branches_can_be_recreated(uri: str) -> None:
    """This must work even with another branch in the folder, where pylance fails."""
    ds = open_dataset(uri)
    for name in ("a", "a/b", "a/data"):
        ds.branches.create(name, 1)
        open_dataset(uri, branch=name).append(rows(7))
    ds.branches.delete("a")
    with pytest.raises(NotFoundError, match="branches are: a/b, a/data"):
        ds.branches.delete("a")
    for name in ("a/b", "a/data"):
        assert of_both(uri, name) == [1, 2, 3, 7]
    lance.dataset(uri).create_branch("a", 3).insert(rows(8))
    assert of_both(uri, "a") == [1, 3, 8]
    ds.branches.delete("a")
    ds.branches.create("a", 2)
    assert of_both(uri, "a") == [1, 2, 3]
    ds.branches.create("a/_versions", 2)
    for name in ("a/data", "a", "a/_versions", "a/b"):
        ds.branches.delete(name)
    assert [path for path in Path(uri, "tree").rglob("*") if path.is_file()] == []
    assert lance.dataset(uri).branches.list() == {}


def test_deletions_spare_the_surrounding_branch(uri: str) -> None:
    """The folder of `a/data` is the data folder of `a`: the reference deletes that, too."""
    open_dataset(uri).branches.create("a", 2)
    a = open_dataset(uri, branch="a").append(rows(7)).append(rows(8)).delete("id = 7")
    lance.dataset(uri).checkout_version(("a", None)).create_scalar_index("id", "BTREE")
    before = {path for path in Path(a.uri).rglob("*") if path.is_file()}
    for folder in ("data", "_versions", "_deletions", "_indices", "_transactions", "data/data"):
        a.branches.create(f"a/{folder}")
        open_dataset(uri, branch=f"a/{folder}").append(rows(9)).delete("id = 9")
        a.branches.delete(f"a/{folder}")
    assert {path for path in Path(a.uri).rglob("*") if path.is_file()} == before
    assert of_both(uri, "a") == [1, 2, 3, 8]


def test_needed_branches_are_not_deleted(uri: str) -> None:
    """Other branches, tags and consumers still read its files."""
    ds = open_dataset(uri)
    ds.branches.create("dev")
    dev = open_dataset(uri, branch="dev").append(rows(7))
    dev.branches.create("deep")
    lance.dataset(uri).tags.create("gold", ("dev", 4))
    record_progress(dev.table.refs, "me", 4)
    for holder, let_go in {
        "the branch 'deep'": lambda: lance.dataset(uri).branches.delete("deep"),
        "the tag 'gold'": lambda: ds.tags.delete("gold"),
        "the tag 'lance_stream.consumer.me'": lambda: ds.tags.delete("lance_stream.consumer.me"),
    }.items():
        with pytest.raises(InvalidInputError, match=holder):
            ds.branches.delete("dev")
        assert of_both(uri, "dev") == [1, 3, 7]
        let_go()
    dev.branches.delete("dev")
    assert lance.dataset(uri).branches.list() == {}
    with pytest.raises(InvalidInputError, match="cannot be deleted"):
        ds.branches.delete("main")


def test_remains_of_branches_are_deleted(uri: str) -> None:
    """pylance can leave the folder of a deleted branch, which must not come back to life."""
    lance.dataset(uri).create_branch("dev").insert(rows(7))
    Path(uri, "_refs/branches/dev.json").unlink()
    with pytest.raises(InvalidInputError, match="was not completely deleted"):
        open_dataset(uri).branches.create("dev", 1)
    open_dataset(uri).branches.delete("dev")
    open_dataset(uri).branches.create("dev", 1)
    assert of_both(uri, "dev") == [1, 2, 3]


def test_a_damaged_branch_can_be_deleted(uri: str) -> None:
    """A branch that nobody can read would otherwise stay forever."""
    open_dataset(uri).branches.create("dev")
    (manifest,) = Path(uri, "tree/dev/_versions").glob("*.manifest")
    manifest.write_bytes(b"?")
    open_dataset(uri).branches.delete("dev")
    assert lance.dataset(uri).branches.list() == {}


def test_tables_in_branch_folders_stay(uri: str) -> None:
    """A folder without a branch file may hold someone's data."""
    lance.write_dataset(rows(1), f"{uri}/tree/own")
    with pytest.raises(InvalidInputError, match="may be an independent table"):
        open_dataset(uri).branches.delete("own")
    assert ids(lance.dataset(f"{uri}/tree/own")) == [1]


def test_branches_stay_in_their_manifest_store(tmp_path: Path) -> None:
    """Writers who bypass the store could commit the same version twice."""
    stored = {"manifest_store": f"sqlite://{tmp_path}/manifests.db"}
    ds = lance_stream.create_dataset(tmp_path / "t", rows(1), storage_options=stored)
    ds.branches.create("dev")
    dev = open_dataset(tmp_path / "t", storage_options=stored, branch="dev").append(rows(2))
    assert dev.verify() == []
    for attempt in (
        lambda: open_dataset(tmp_path / "t").branches.create("other"),
        lambda: open_dataset(tmp_path / "t").branches.delete("dev"),
        lambda: open_dataset(tmp_path / "t", branch="dev").append(rows(3)),
    ):
        with pytest.raises(InvalidInputError, match="published in an external manifest store"):
            attempt()
    ds.branches.delete("dev")
    ds.branches.create("dev", 1)
    again = open_dataset(tmp_path / "t", storage_options=stored, branch="dev").append(rows(4))
    assert (again.version, ids(again)) == (2, [1, 4])


# --- killed, and at once


@pytest.mark.parametrize("before", [True, False])
def test_killed_creations_are_completed_next(uri: str, before: bool) -> None:
    """At each step a killed process leaves other files."""
    number = 0
    while True:
        with killed_at(number, before=before) as result:
            open_dataset(uri).branches.create("dev", 1)
        is_whole = len(result) <= number
        if not is_whole:
            assert ids(open_dataset(uri)) == [1, 3]
            open_dataset(uri).cleanup(retain_versions=4, delete_unverified=True)
            if "dev" not in open_dataset(uri).branches.list():
                open_dataset(uri).branches.create("dev", 1)
        assert of_both(uri, "dev") == [1, 2, 3]
        lance.dataset(uri).branches.delete("dev")
        for tag in list(open_dataset(uri).tags.list()):
            assert tag.startswith(HOLD_PREFIX)
            open_dataset(uri).tags.delete(tag)
        if is_whole:
            break
        number += 1
    assert number >= 5


def test_other_killed_creations_are_reported(uri: str) -> None:
    """Completing such a creation would give the user a branch that starts elsewhere."""
    with killed_at(2, before=True):
        open_dataset(uri).branches.create("dev", 1)
    with pytest.raises(
        InvalidInputError, match=r"another clone, of version 1 of .*a table.* is not finished"
    ):
        open_dataset(uri).branches.create("dev", 2)
    open_dataset(uri).branches.delete("dev")
    open_dataset(uri).branches.create("dev", 2)
    assert of_both(uri, "dev") == [1, 2, 3]


@pytest.mark.parametrize("before", [True, False])
def test_killed_deletions_are_completed_next(uri: str, before: bool) -> None:
    """At each step a killed process leaves other files, and the main branch must stay intact."""
    number = 0
    while True:
        open_dataset(uri).branches.create("dev", 1)
        open_dataset(uri, branch="dev").append(rows(7)).delete("id = 1")
        with killed_at(number, before=before) as result:
            open_dataset(uri).branches.delete("dev")
        if len(result) <= number:
            break
        open_dataset(uri).cleanup(retain_versions=4, delete_unverified=True)
        assert ids(open_dataset(uri)) == ids(lance.dataset(uri)) == [1, 3]
        try:
            open_dataset(uri).branches.delete("dev")
        except NotFoundError:
            assert number + 1 == len(result)
        number += 1
    assert number > 5
    assert [path for path in Path(uri, "tree").rglob("*") if path.is_file()] == []


def test_cleanups_spare_branches_in_creation(uri: str) -> None:
    """A cleanup that runs at any change of a creation leaves a branch that is whole, or none."""
    real = LocalStore.create_once
    for number in range(4):
        calls: list[str] = []

        def interrupted(
            store: LocalStore, path: str, data: Any, calls: list[str] = calls, number: int = number
        ) -> bool:
            calls.append(path)
            if len(calls) == number + 1:
                with patch.object(LocalStore, "create_once", real):
                    open_dataset(uri).cleanup(timedelta(0), delete_unverified=True)
            return real(store, path, data)

        state = open_dataset(uri).overwrite(rows(number, number + 1)).append(rows(9))
        with patch.object(LocalStore, "create_once", interrupted):
            try:
                open_dataset(uri).branches.create(f"b{number}", state.version - 1)
            except NotFoundError:
                assert f"b{number}" not in open_dataset(uri).branches.list()
                continue
        open_dataset(uri).overwrite(rows(5)).cleanup(timedelta(0), delete_unverified=True)
        assert of_both(uri, f"b{number}") == [number, number + 1]
        assert len(calls) > number


def test_concurrent_children_stop_deletions(uri: str) -> None:
    """The child reads files of the branch that is being deleted."""
    open_dataset(uri).branches.create("dev")
    open_dataset(uri, branch="dev").append(rows(7))
    real = LocalStore.delete
    is_done = False

    def interrupted(store: LocalStore, path: str) -> None:
        nonlocal is_done
        if path == "_refs/branches/dev.json" and not is_done:
            is_done = True
            open_dataset(uri, branch="dev").branches.create("deep")
        real(store, path)

    with (
        patch.object(LocalStore, "delete", interrupted),
        pytest.raises(InvalidInputError, match="the branch 'deep'"),
    ):
        open_dataset(uri).branches.delete("dev")
    assert is_done
    assert of_both(uri, "dev") == of_both(uri, "deep") == [1, 3, 7]


def test_of_two_creators_one_decides(uri: str) -> None:
    """Both would otherwise believe that the branch starts at their version."""
    real = LocalStore.create_once
    others: list[Exception] = []

    def interrupted(store: LocalStore, path: str, data: Any) -> bool:
        if "/tree/dev" in store.root and path.startswith("_versions/"):
            with patch.object(LocalStore, "create_once", real):
                try:
                    open_dataset(uri).branches.create("dev", 2)
                except InvalidInputError as error:
                    others.append(error)
        return real(store, path, data)

    with patch.object(LocalStore, "create_once", interrupted):
        open_dataset(uri).branches.create("dev", 1)
    assert "another clone, of" in str(others[0])
    assert open_dataset(uri, branch="dev").version == 1
