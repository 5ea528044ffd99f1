"""Branches that are created or deleted at the same time, and what is left of them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError, UnsupportedFeatureError
from lance_stream.commit.external_log import ExternalLog
from lance_stream.maintenance import branches
from lance_stream.maintenance.branches import create_branch, delete_branch
from lance_stream.maintenance.links import check_no_links
from lance_stream.table.paths import branch_file_path
from lance_stream.verbs.create import plan_table


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    """One version."""
    return lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))


def test_late_creators_do_not_succeed(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another creator has finished the branch, maybe from another version."""
    monkeypatch.setattr(branches.references, "create_branch_file", lambda *_: False)
    with pytest.raises(InvalidInputError, match="the branch 'dev' already exists"):
        ds.branches.create("dev")


def test_unfinished_branches_have_no_children(ds: Dataset) -> None:
    """Their file is missing: a creator was killed, or somebody deletes them."""
    ds.branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev")
    create_branch(dev.table, "first")
    ds.table.store.delete(branch_file_path("dev"))
    with pytest.raises(NotFoundError, match=r"the branch 'dev' .* is not completely created"):
        create_branch(dev.table, "second")


@pytest.mark.parametrize("is_finished", [True, False])
def test_needed_branches_stay(ds: Dataset, is_finished: bool) -> None:
    """A branch reads the files of the one that it was created from, even while unfinished."""
    ds.branches.create("dev")
    create_branch(lance_stream.open_dataset(ds.uri, branch="dev").table, "child")
    ds.branches.create("other")
    ds.tags.create("gold", 1)
    if is_finished:  # which has files of the first one
        create_branch(lance_stream.open_dataset(ds.uri, branch="child").table, "grandchild")
    else:
        for name in ("child", "other"):
            ds.table.store.delete(branch_file_path(name))
    kind = "branch" if is_finished else "unfinished branch"
    with pytest.raises(InvalidInputError, match=f"the {kind} 'child'") as refused:
        ds.branches.delete("dev")
    assert "'other'" not in str(refused.value)
    assert "'grandchild'" not in str(refused.value)
    assert ds.table.store.exists(branch_file_path("dev"))
    names = ("grandchild", "child", "other", "dev") if is_finished else ("child", "other", "dev")
    for name in names:
        ds.branches.delete(name)


@pytest.mark.parametrize("is_finished", [True, False])
def test_branches_needed_meanwhile_return(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    """A child is created between the check and the removal of the file."""
    ds.branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev")
    delete_file = branches.references.delete_branch_file

    def create_child_first(*arguments: Any) -> Any:
        create_branch(dev.table, "child")
        return delete_file(*arguments)

    if not is_finished:
        ds.table.store.delete(branch_file_path("dev"))
        monkeypatch.setattr(branches, "_parent_of", lambda _: None)
    monkeypatch.setattr(branches.references, "delete_branch_file", create_child_first)
    with pytest.raises(InvalidInputError, match="'child'"):
        delete_branch(ds.table.refs, "dev")
    assert ds.table.store.exists(branch_file_path("dev")) == is_finished
    assert lance_stream.open_dataset(ds.uri, branch="child").to_table().num_rows == 1


def test_linked_folders_are_not_emptied(ds: Dataset, tmp_path: Path) -> None:
    """They may belong to another table, whose files would be deleted."""
    check_no_links(ds.table.store, ("data", "_versions", "absent"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t" / "linked").symlink_to(tmp_path / "elsewhere")
    for folder in ("linked", "linked/below"):
        with pytest.raises(UnsupportedFeatureError, match=f"{folder} is a link"):
            check_no_links(ds.table.store, ("data", folder))


@pytest.mark.parametrize("version", [("main",), ("main", 1, 2), ("main", 0), 0, -1, 1.5, True, [1]])
def test_tags_name_one_version(ds: Dataset, version: Any) -> None:
    """A tag on another version than the one that was meant protects nothing."""
    with pytest.raises(InvalidInputError, match="a tag must name a version by a number"):
        ds.tags.create("gold", version)
    for number, right in enumerate((1, ("main", 1), (None, 1))):
        ds.tags.create(f"tag{number}", right)  # type: ignore[arg-type]  # of several types


def test_new_branches_need_a_free_name(ds: Dataset) -> None:
    """The versions of two branches of one name would be mixed up."""
    for name in ("main", None):
        with pytest.raises(InvalidInputError, match="'main' always exists"):
            ds.branches.create(name)  # type: ignore[arg-type]  # None is no name
    with pytest.raises(InvalidInputError, match="its file would be hidden"):
        ds.branches.create(".dev")
    ds.branches.create("dev")
    with pytest.raises(InvalidInputError, match="the branch 'dev' already exists"):
        ds.branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev")
    ds.table.store.delete(branch_file_path("dev"))
    assert ds.branches.create("dev").parent_version == 1  # its creation was interrupted
    dev.append(pa.table({"id": [2]}))
    ds.table.store.delete(branch_file_path("dev"))
    with pytest.raises(InvalidInputError, match=r"delete\('dev'\), and create the branch again"):
        ds.branches.create("dev")
    ds.branches.delete("dev")
    ds.branches.create("dev")


def test_branches_start_from_existing_tables(tmp_path: Path) -> None:
    """A table that is only planned has no version."""
    table = plan_table(tmp_path / "none", pa.schema([("id", pa.int64())]))
    with pytest.raises(NotFoundError, match=r"there is no table at .* to create a branch"):
        create_branch(table, "dev")


def test_only_branches_are_deleted(ds: Dataset) -> None:
    """A misspelt name must not delete another table, nor pass silently."""
    for name in ("main", None):
        with pytest.raises(InvalidInputError, match="the main branch is the table itself"):
            ds.branches.delete(name)  # type: ignore[arg-type]  # None is no name
    with pytest.raises(NotFoundError, match="no branch 'dev'; it has no branches"):
        ds.branches.delete("dev")
    ds.branches.create("dew")
    with pytest.raises(NotFoundError, match="no branch 'dev'; its branches are: dew"):
        ds.branches.delete("dev")
    table = lance_stream.create_dataset(f"{ds.uri}/tree/dev", pa.table({"id": [1]}))
    with pytest.raises(InvalidInputError, match="it may be an independent table"):
        ds.branches.delete("dev")
    assert lance_stream.open_dataset(table.uri).verify() == []
    for file in table.table.store.list("_versions"):
        table.table.store.delete(file.path)
    ds.branches.delete("dev")  # files of no version
    assert table.table.store.list() == []


def test_deleted_branches_leave_their_store(tmp_path: Path) -> None:
    """A branch that is created again starts with no versions of the old one."""
    options = {"manifest_store": f"sqlite://{tmp_path}/manifests.db"}
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}), storage_options=options)
    ds.branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev", storage_options=options)
    dev.append(pa.table({"id": [2]}))
    log = dev.table.log
    assert isinstance(log, ExternalLog)
    ds.branches.delete("dev")
    assert log.manifests.items(log.base_uri) == []
    assert ds.table.log.versions() == [1]
    ds.branches.create("dev")
