"""Branches that are created or deleted at the same time, and what is left of them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError, UnsupportedFeatureError
from lance_stream.maintenance import branches
from lance_stream.maintenance.branches import create_branch, delete_branch
from lance_stream.maintenance.links import check_no_links
from lance_stream.table.paths import branch_file_path


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
    if not is_finished:
        for name in ("child", "other"):
            ds.table.store.delete(branch_file_path(name))
    kind = "branch" if is_finished else "unfinished branch"
    with pytest.raises(InvalidInputError, match=f"the {kind} 'child'") as refused:
        ds.branches.delete("dev")
    assert "'other'" not in str(refused.value)
    assert ds.table.store.exists(branch_file_path("dev"))
    for name in ("child", "other", "dev"):
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
