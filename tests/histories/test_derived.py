"""Columns that a function computes, among what else happens to a table."""

import numpy as np
import pytest

from lance_stream.derived import computing
from tests.histories.engine import Outcome, replay
from tests.histories.steps import step

ROWS = {key: {"a": f"s{key}"} for key in range(4)}


FIRST = {0: {"d": None}}
LATER = {1: {"d": 5}, 8: {"d": 1}}


def life_with_a_derived_column() -> Outcome:
    derived = step(
        "derive_in_table", column="a", function=1, rival=[], batch_rows=3, rows_per_commit=7
    )
    rival = ["append", {5: {"a": "s5"}}, "we"]
    disturbed = step(
        "derive_in_table", column="a", function=1, rival=rival, batch_rows=3, rows_per_commit=7
    )
    return replay(
        [
            step("create", file_version="2.2", columns=[["a", "string"]], rows=ROWS, way="rows"),
            derived,
            step("upsert", names=["a"], rows={1: {"a": "new"}, 4: {"a": None}}, by=["we"]),
            derived,
            step("upsert", names=["a"], rows={2: {"a": "other"}}, by=["we"]),
            disturbed,
            derived,
        ]
    )


def test_only_changed_rows_are_recomputed() -> None:
    """Four rows at first, then two that an upsert wrote, one more, and one that a rival
    appended.
    """
    outcome = life_with_a_derived_column()
    if outcome.error is not None:
        raise outcome.error
    assert outcome.counts["rows derived"] == 4 + 2 + 1 + 1


def test_wrong_input_fingerprints_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose fingerprint is not that of its inputs would never be computed again."""
    monkeypatch.setattr(
        computing, "fingerprints_of", lambda inputs, _: np.full(inputs.num_rows, 5, np.int64)
    )
    assert isinstance(life_with_a_derived_column().error, AssertionError)


def test_compaction_while_deriving_keeps_values() -> None:
    """Compacted rows of several fragments are compared with those that the function has seen."""
    outcome = replay(
        [
            step("create", file_version="2.2", columns=[["d", "int8"]], rows=FIRST, way="rows"),
            step("add_empty_column", name="b", kind="string", by=["we"]),
            step("merge", form="insert only", rows=LATER, by=["pylance"]),
            step(
                "derive_beside",
                column="b",
                function=1,
                rival=["compact", 1000],
                rows_per_commit=1000,
            ),
        ]
    )
    if outcome.error is not None:
        raise outcome.error
    assert not any(name.startswith("unfit") for name in outcome.counts), outcome.counts


@pytest.mark.parametrize("number", range(4))
def test_restores_while_deriving_keep_nothing_stale(number: int) -> None:
    """Rows of any version with these columns may be back once the values are computed."""
    derived = {"column": "a", "function": 1, "batch_rows": 3, "rows_per_commit": 7}
    outcome = replay(
        [
            step("create", file_version="2.2", columns=[["a", "string"]], rows=ROWS, way="rows"),
            step("derive_in_table", **derived, rival=[]),
            step("upsert", names=["a"], rows={1: {"a": "one"}, 5: {"a": "new"}}, by=["we"]),
            step("upsert", names=["a"], rows={1: {"a": "two"}}, by=["we"]),
            step("delete", where=[5], by=["we"]),
            step("derive_in_table", **derived, rival=["restore", number, "pylance"]),
        ]
    )
    if outcome.error is not None:
        raise outcome.error
    assert not any(name.startswith("unfit") for name in outcome.counts), outcome.counts
