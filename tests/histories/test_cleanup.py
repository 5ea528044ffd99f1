"""Cleanups under errors, and what they have to leave."""

from datetime import timedelta
from typing import Any

import pytest

from lance_stream.dataset import Dataset
from tests.histories.engine import Outcome, replay, replay_whole
from tests.histories.steps import step

pytestmark = pytest.mark.oracle


def cleaned_up(**choices: Any) -> Outcome:
    """Clean up a table with a tag, a branch, and rows that are committed later."""
    rows = {key: {"a": key} for key in range(6)}
    create = step("create", file_version="2.2", columns=[["a", "int64"]], rows=rows, way="rows")
    ahead = step("commit_ahead", rows={30: {"a": 1}}, line=0)
    return replay(
        [
            create,
            step("append", rows={7: {"a": 7}}, by=["we"]),
            step("tag", name="red", version=2, by="we"),
            step("create_branch", name="dev/deep", version=1, by="pylance"),
            step("delete", where=[1, 2], by=["we"], line=0),
            ahead,
            step("append", rows={8: {"a": 7}}, by=["we"], line=0),
            step("troubled_cleanup", line=0, **choices),
            ahead,
        ]
    )


@pytest.mark.essential
def test_needed_files_outlive_failing_cleanups() -> None:
    """Calls fail, or files seem to be missing, at other points for each seed."""
    failed = 0
    for seed in range(8):
        arguments = {"older_than": 0, "delete_unverified": True}
        outcome = cleaned_up(arguments=arguments, seed=seed, beside=[])
        if outcome.error is not None:
            raise outcome.error
        assert outcome.counts["commit_ahead"] == 2
        failed += outcome.counts["cleanups that failed"]
    assert failed > 2


def test_a_lost_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleanup that overlooks a tag removes what the tag names."""
    cleanup = Dataset.cleanup

    def without_tags(ds: Dataset, *arguments: Any, **named: Any) -> Any:
        ds.tags.delete("red")
        return cleanup(ds, timedelta(0))

    monkeypatch.setattr(Dataset, "cleanup", without_tags)
    arguments = {"retain_versions": 1, "delete_unverified": False}
    errors = [cleaned_up(arguments=arguments, seed=seed, beside=[]).error for seed in range(5)]
    assert any(isinstance(error, AssertionError) for error in errors)


def test_branches_of_clones_can_be_deleted() -> None:
    """A clone is a table of its own, with its own branches."""
    rows = {key: {"a": key} for key in range(3)}
    outcome = replay(
        [
            step("create", file_version="2.2", columns=[["a", "int64"]], rows=rows, way="rows"),
            step("clone", version=1),
            step("create_branch", line=1, name="dev", version=1, by="pylance"),
            step("delete_branch", line=2),
        ]
    )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.counts["delete_branch"] == 1


def test_killed_restores_hold_their_version() -> None:
    """The process that would have deleted the tag does not exist any more."""
    rows = {0: {"a": 0}}
    counts = replay_whole(
        step("create", file_version="2.2", columns=[["a", "int64"]], rows=rows, way="rows"),
        step("delete", where=[0], by=["we"]),
        step("append", rows={1: {"a": 1}}, by=["we"]),
        step("append", rows={2: {"a": 2}}, by=["we"]),
        step("restore", version=3, by=["dies", 9, False]),
        step("cleanup", retain=1, by="we", watched=[]),
    )
    assert counts["cleanup"] == 1


@pytest.mark.parametrize("which", ["new", 0])
def test_cleanups_meet_another_table(which: Any) -> None:
    """A table that takes the place of the one that is cleaned up loses nothing."""
    rows = {key: {"a": [key]} for key in range(4)}
    others = [{18: {"a": [1]}, 19: {"a": []}}]
    counts = replay_whole(
        step("create", file_version="2.2", columns=[["a", "list"]], rows=rows, way="rows"),
        step("keep_copy"),
        step("upsert", names=["a"], rows={3: {"a": [0, 1]}}, by=["we"]),
        step("upsert", names=["a"], rows={2: {"a": [0, 1]}}, by=["we"]),
        step(
            "troubled_cleanup",
            arguments={"older_than": 0},
            seed=877000,
            beside=[27, "replace"],
            **{"choices beside": {"replacement": [which, others]}},
        ),
    )
    assert counts["tables replaced beside a cleanup"] == 1


def test_handles_of_removed_versions_may_continue() -> None:
    """Nobody can tell that the version of a handle was another table's, if the columns are those
    of the table and a cleanup has removed its version of that number.
    """
    counts = replay_whole(
        step("create", file_version="2.1", columns=[["c", "list"]], rows={0: {}}, way="empty"),
        step("append_many", rows={26: {"c": [1, 7]}}),
        step("append", rows={27: {"c": [1, 7]}}, by=["we"]),
        step("append", rows={28: {"c": [1, 7]}}, by=["we"]),
        step("troubled_cleanup", arguments={"older_than": 0}, seed=12188, beside=[]),
        step("keep_copy"),
        step(
            "restarted_query",
            rows={35: {"c": [None]}},
            way="append",
            successor=["new", []],
        ),
        step("replace_by_another", replacement=[0, [{38: {"c": None}}]], verb="compact"),
    )
    assert counts["replace_by_another"] == 1
