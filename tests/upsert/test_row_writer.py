"""Into which files an upsert writes its rows, and what a failed one leaves behind."""

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError
from lance_stream.row_updates.in_place_costs import FragmentCosts
from lance_stream.table.config.lineage_limits import INLINE_KEY, SPILL_KEY

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("x", pa.int64()), pa.field("text", pa.string(), False)]
)


def rows(keys: Sequence[int], x: int, text: str = "t") -> pa.Table:
    columns = {"id": list(keys), "x": [x] * len(keys), "text": [text] * len(keys)}
    return pa.table(columns, schema=SCHEMA)


def new_table(text: str = "t", limit: int | None = None) -> Dataset:
    """Return a table of 100 rows, with a limit of lineage in bytes."""
    config = {} if limit is None else {SPILL_KEY: "true", INLINE_KEY: str(limit)}
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA, config=config)
    return ds.append(rows(range(100), 0, text))


@pytest.fixture
def all_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row stays where it is."""
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: False))


@pytest.mark.parametrize(
    ("limit", "num_changed", "sizes"),
    [
        (None, 21, [24]),
        (40, 20, [23]),
        (40, 21, [21, 3]),
        (0, 0, [3]),
        (0, 1, [1, 3]),
    ],
)
def test_long_lineage_separates_new_rows(
    limit: int | None, num_changed: int, sizes: list[int], all_move: None
) -> None:
    """A file of lineage has that of all rows of a fragment, but new rows get theirs later."""
    ds = new_table(limit=limit)
    keys = [*range(0, 4 * num_changed, 4), 100, 101, 102]
    ds = ds.upsert(rows(keys, 7), on="id")
    assert [fragment.physical_rows for fragment in ds.table.manifest.fragments[1:]] == sizes
    changed = ds.to_table(filter="x = 7")
    assert sorted(changed["id"].to_pylist()) == keys
    assert ds.count_rows() == 103
    assert ds.verify() == []


@pytest.mark.parametrize("way", ["in place", "moved", "separate"])
def test_failed_writes_leave_no_file(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changed rows are written before a new one turns out to lack a value."""
    ds = new_table("long " * 500 if way == "in place" else "t", 0 if way == "separate" else None)
    if way != "in place":
        monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: False))
    before = ds.table.store.list_names("data")
    changed = rows(range(0, 100, 4), 7).drop_columns(["text"])
    new = rows([300], 7).drop_columns(["text"])
    with pytest.raises(InvalidInputError, match="'text' must not be null"):
        ds.upsert(pa.concat_tables([changed, new]), on="id")
    assert ds.table.store.list_names("data") == before
    assert ds.checkout(None).version == ds.version
    fragments = ds.upsert(changed, on="id").table.manifest.fragments
    assert len(fragments) == (1 if way == "in place" else 2)
