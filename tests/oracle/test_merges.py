"""Merges that leave updates or inserts out, on twins of one table, ours and pylance's."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import lance_stream
from tests.oracle.test_upserts import rows_of

pytestmark = pytest.mark.oracle

CONDITION: Final = "source.x > target.x AND source.note IS NOT NULL"

FORMS: Final[dict[str, tuple[dict[str, str], Callable[[Any], Any]]]] = {
    "insert only": (
        {"when_matched": "ignore"},
        lambda merge: merge.when_not_matched_insert_all(),
    ),
    "update only": (
        {"when_not_matched": "ignore"},
        lambda merge: merge.when_matched_update_all(),
    ),
    "conditional": (
        {"when_matched": CONDITION},
        lambda merge: merge.when_matched_update_all(CONDITION).when_not_matched_insert_all(),
    ),
    "conditional update only": (
        {"when_matched": CONDITION, "when_not_matched": "ignore"},
        lambda merge: merge.when_matched_update_all(CONDITION),
    ),
}
"""Arguments of our upsert, and the same of pylance's merge_insert."""


def batch(dice: random.Random, keys: list[int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "x": pa.array([dice.choice((None, *range(5))) for _ in keys], pa.float64()),
            "note": pa.array([dice.choice((None, "a", "b")) for _ in keys], pa.string()),
        }
    )


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", FORMS)
def test_random_merges_agree(tmp_path: Path, form: str, seed: int) -> None:
    """Equal rows, row ids and stamps, and a feed that says the same as the rows."""
    arguments, clauses = FORMS[form]
    dice = random.Random(seed)
    first = batch(dice, list(range(20)))
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        lance.write_dataset(first, uri, enable_stable_row_ids=True, max_rows_per_file=7)
    for _ in range(8):
        data = batch(dice, dice.sample(range(30), dice.randint(1, 12)))
        before = lance_stream.open_dataset(ours)
        after = before.upsert(data, "id", **arguments)
        merge = lance.dataset(theirs).merge_insert("id")
        counted = clauses(merge).execute(data)
        if after.version == before.version:  # pylance commits even what changes nothing
            assert not counted["num_inserted_rows"] + counted["num_updated_rows"]
            after.update_config({"step": str(after.version)})
        assert rows_of(lance.dataset(ours)) == rows_of(lance.dataset(theirs))
        changes = after.changes(before.version).read_all()["_change_type"].to_pylist()
        assert changes.count("insert") == counted["num_inserted_rows"]
        assert changes.count("update_postimage") == counted["num_updated_rows"]
    assert lance_stream.open_dataset(ours).verify() == []
