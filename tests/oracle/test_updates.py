"""Updates on twins of one table, ours and pylance's: the same rows, ids, stamps and indices."""

import random
from pathlib import Path

import lance
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.opening import open_newest
from lance_stream.verbs.update import update
from tests.oracle.test_upserts import Twins, rows

pytestmark = pytest.mark.oracle

CHANGES = [
    ({"x": "x * 2"}, "id > 12"),
    ({"x": "x + 0.5", "group": "'new'"}, "id % 3 = 0"),
    ({"id": "id + 100"}, "id % 4 = 1"),
    ({"x": "x + id", "id": "id"}, None),
    ({"group": "NULL"}, "x IS NOT NULL AND id IN (3, 4)"),
    ({"x": "1.0"}, "id < 0"),
]


@pytest.mark.parametrize("seed", range(3))
def test_random_updates_agree(tmp_path: Path, seed: int) -> None:
    """Moved rows must have the ids, stamps and index coverage that pylance gives them."""
    dice = random.Random(seed)
    twins = Twins(tmp_path, rows(range(20), 0))
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).create_scalar_index("group", "BITMAP")
        lance.dataset(uri).create_scalar_index("id", "BTREE")
    for _ in range(4):
        values, where = dice.choice(CHANGES)
        before = lance.dataset(twins.theirs).version
        counted = lance.dataset(twins.theirs).update(values, where=where)
        if not counted["num_rows_updated"]:
            # Pylance makes a version though nothing changes.
            assert update(open_newest(twins.ours), values, where).version == before
            return
        update(open_newest(twins.ours), values, where)
        twins.check()


def test_values_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    """An update that fails halfway must not leave a version."""
    twins = Twins(tmp_path, rows(range(5), 0))
    table = open_newest(twins.ours)
    for values, match in (
        ({"id": "x"}, "'id' is double"),
        ({"y": "1"}, "no column 'y'"),
        ({"x": "1 +"}, "1 \\+"),
        ({}, "at least one column"),
    ):
        with pytest.raises((InvalidInputError, lance_stream.NotFoundError), match=match):
            update(table, values)
    assert table.log.latest() == 1
