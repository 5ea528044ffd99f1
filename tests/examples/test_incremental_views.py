"""Views that an example keeps up to date equal the same views computed from all rows."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from tests.examples.test_example_modules import load

example = load("incremental_views")
REGIONS = ["north", "south", "east", "west"]


def test_the_views_example_prints_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The documentation quotes its output."""
    example.main(str(tmp_path))
    east = "  east     209 orders     2,950.26,  14.12 each"
    assert capsys.readouterr().out.splitlines()[0] == east


@pytest.mark.slow
@pytest.mark.nightly
def test_a_hundred_refreshes_equal_batch(tmp_path: Path) -> None:
    """Rare orders of changes appear only in long random runs."""
    check_refreshes(tmp_path, 100)


def test_incremental_refreshes_equal_batch_results(tmp_path: Path) -> None:
    """An incremental view is only right if it equals the same query over all rows."""
    check_refreshes(tmp_path, 12)


def check_refreshes(tmp_path: Path, count: int) -> None:
    """Through inserts, updates and deletes of both tables, keys that move, and compactions."""
    folder, dice = str(tmp_path), random.Random(100)
    example.create(folder)
    for _ in range(count):
        for _ in range(dice.randrange(3)):
            change(folder, dice)
        example.refresh(folder)
        assert example.views(folder) == example.views_in_batch(folder)
    for name in ("sales", "regions"):
        assert lance_stream.open_dataset(f"{folder}/{name}.lance").verify() == []


def change(folder: str, dice: random.Random) -> None:
    name = dice.choice(["orders", "orders", "customers"])
    ds = example.opened(folder, name)
    ids = dice.sample(range(1, 60 if name == "orders" else 12), 5)
    kind = dice.random()
    if kind < 0.6:
        rows = [
            {"id": id_, "customer": dice.randrange(1, 14), "cents": dice.randrange(1000)}
            if name == "orders"
            else {"id": id_, "region": dice.choice(REGIONS)}
            for id_ in ids
        ]
        ds.upsert(pa.Table.from_pylist(rows, ds.schema), on="id")
    elif kind < 0.85:
        ds.delete(f"id IN ({', '.join(map(str, ids))})")
    elif kind < 0.95:
        ds.compact()
    else:
        ds.restore(dice.randrange(max(1, ds.version - 4), ds.version + 1))
