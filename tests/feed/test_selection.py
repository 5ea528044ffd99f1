"""Selected rows and columns of the feed."""

import uuid

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import NotFoundError
from lance_stream.feed.changes import plan_changes
from lance_stream.feed.selection import FeedSelection
from lance_stream.schema.system_columns import CHANGE_COLUMNS

SCHEMA = pa.schema({"id": pa.int64(), "x": pa.int64(), "s": pa.struct({"a": pa.int8()})})
FEED = CHANGE_COLUMNS.names


@pytest.fixture
def table() -> lance_stream.Dataset:
    """Version 2 inserts three rows, and version 3 deletes one of them."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    rows = [{"id": number, "x": 10 * number, "s": {"a": number}} for number in range(3)]
    return ds.append(pa.Table.from_pylist(rows, SCHEMA)).delete("id = 1")


@pytest.mark.parametrize(
    ("columns", "condition", "needed", "names"),
    [
        (None, None, None, [*SCHEMA.names, *FEED]),
        (None, "id = 1", None, [*SCHEMA.names, *FEED]),
        (["x"], None, ["x"], ["x", *FEED]),
        (["x"], "id = 1", ["x", "id"], ["x", *FEED]),
        (["x", FEED[0]], "s.a = 1 AND x > 0", ["x", "s.a"], ["x", FEED[0]]),
        ([FEED[0]], "_change_type = 'delete' OR s.a = 1", ["s.a"], [FEED[0]]),
        ([], None, [], FEED),
    ],
)
def test_selections_read_what_they_need(
    table: lance_stream.Dataset,
    columns: list[str] | None,
    condition: str | None,
    needed: list[str] | None,
    names: list[str],
) -> None:
    """A condition may use columns that are not selected, and no other column is read."""
    selection = FeedSelection(table.table, columns, condition)
    paths = selection.needed and [path.replace("`", "") for path in selection.needed]
    assert paths == needed
    assert selection.rows.schema.names == names
    plan = plan_changes(table.table, 0, columns=selection.columns)
    rows = pa.Table.from_batches(selection.rows.read(plan.units), selection.rows.schema)
    expected = table.changes(0).read_all()
    if condition is not None:
        expected = expected.filter(pa.array([row["id"] == 1 for row in expected.to_pylist()]))
    assert rows.to_pylist() == expected.select(names).to_pylist()


def test_conditions_need_existing_columns(table: lance_stream.Dataset) -> None:
    """The message comes before the first batch."""
    with pytest.raises(NotFoundError, match="no column 'unknown'"):
        FeedSelection(table.table, None, "unknown = 1")
