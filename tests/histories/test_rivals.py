"""Verbs that another writer comes in between of: the kit notices what a lost rebase would do."""

import pytest

from lance_stream.commit import committer
from lance_stream.table.conflicts.rules import ConflictVerdict
from tests.histories.engine import Outcome, replay, replay_whole
from tests.histories.life import STORE_CALLS
from tests.histories.steps import step

CREATE = step(
    "create",
    file_version="2.2",
    columns=[["a", "int64"]],
    rows={key: {"a": key} for key in range(8)},
    way="rows",
)
NUM_CALLS = 12


def upsert_beside(name: str, details: object, writer: str, at: int) -> Outcome:
    rows = {1: {"a": 70}, 2: {"a": 71}, 9: {"a": 72}}
    by = ["beaten", name, details, writer, at]
    return replay([CREATE, step("upsert", names=["a"], rows=rows, by=by), step("valid")])


@pytest.mark.oracle
@pytest.mark.parametrize("writer", ["we", "pylance"])
def test_rivals_may_precede_any_call(writer: str) -> None:
    """Before our plan, between plan and commit, and after it: the table has both changes."""
    for at in range(NUM_CALLS):
        outcome = upsert_beside("delete", [1, 3], writer, at)
        if outcome.error is not None:
            raise outcome.error
        assert outcome.counts["by beaten"] == 1


@pytest.mark.oracle
def test_pylance_writes_within_its_lock() -> None:
    """pylance panics if it is called by the commit lock of its own update of an index."""
    for at in range(1, 4):
        by = ["beaten", "append", {30: {"a": 1}}, "pylance", at]
        counts = replay_whole(
            CREATE,
            step("create_index", column="a", kind="BITMAP"),
            step("append", rows={20: {"a": 5}}, by=["we"]),
            step("optimize_indices", merged=1, one=None, by=by),
        )
        assert counts["by beaten"] == 1


def test_rivals_outlive_tasks_that_die() -> None:
    """A task's attempt dies at the call that the rival writes before: the rival writes once."""
    rows = {0: {"a": None}, 1: {"a": 71}, 2: {"a": 62}, 8: {"a": 40}}
    for at in range(NUM_CALLS, 2 * NUM_CALLS):
        by = ["beaten", "configure", 17, "we", at]
        outcome = replay([CREATE, step("large_upsert", rows=rows, parts=5, by=by)])
        if outcome.error is not None:
            raise outcome.error


def test_upserts_may_precede_deletes() -> None:
    """An upsert that changes nothing commits nothing, even if its rows are deleted meanwhile."""
    by = ["beaten", "delete", [1], "we", 10]
    upsert = step("upsert", names=[], rows={1: {}}, skip_unchanged=True, by_tasks=True, by=by)
    outcome = replay([CREATE, upsert, step("valid")])
    assert outcome.counts["by beaten"] == 1
    if outcome.error is not None:
        raise outcome.error


@pytest.mark.oracle
def test_columns_may_be_computed_beside_rivals() -> None:
    """What the model expects of a new column depends on the table after the commit."""
    computed = step("add_computed_column", name="b", plus=2, by=["beaten", "configure", 5, "we", 0])
    outcome = replay([CREATE, computed, step("valid")])
    if outcome.error is not None:
        raise outcome.error
    assert outcome.counts["by beaten"] == 1


@pytest.mark.oracle
def test_replaced_tables_get_no_foreign_commits() -> None:
    """The new table has the location and version numbers of the one that the upsert planned on."""
    num_refused = 0
    for at in range(1, NUM_CALLS):
        outcome = upsert_beside("replace", ["new", [{20: {"a": 0}}]], "we", at)
        if outcome.error is not None:
            raise outcome.error
        num_refused += outcome.counts["refused by another table"]
    assert num_refused > 5


@pytest.mark.oracle
def test_commits_to_another_table_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that takes each table for the one that it has opened commits to another one."""
    monkeypatch.setattr("lance_stream.commit.same_table.is_same_version", lambda *_: True)
    errors = [upsert_beside("replace", ["new", []], "we", at).error for at in range(1, NUM_CALLS)]
    assert any(isinstance(error, AssertionError) for error in errors)


@pytest.mark.oracle
def test_revived_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rebase, the rows that a rival has deleted come back."""
    real = committer.check

    def without_rebase(*arguments: object) -> ConflictVerdict:
        real(*arguments)  # type: ignore[arg-type]  # as it was called
        return ConflictVerdict.YES

    monkeypatch.setattr(committer, "check", without_rebase)
    assert isinstance(upsert_beside("delete", [1, 3], "we", 0).error, AssertionError)


def test_calls_of_the_store_exist() -> None:
    """A renamed call would not be counted."""
    from lance_stream.storage.local_store import LocalStore

    assert all(hasattr(LocalStore, name) for name in STORE_CALLS)
