"""What new rows declare about a table's columns."""

import pyarrow as pa
import pytest

from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.declarations import with_declarations
from lance_stream.schema.fields import assign_ids

TABLE = assign_ids(from_arrow(pa.schema([("id", pa.int64()), ("x", pa.string())])))


def test_declarations_are_added_to_the_columns() -> None:
    """Ids stay, so that what refers to a column still does."""
    metadata = {"unit": b"metre"}
    rows = pa.schema([("id", pa.int64()), pa.field("x", pa.string(), metadata=metadata)])
    declared = with_declarations(TABLE, from_arrow(rows))
    assert declared is not None
    assert [field.id for field in declared.fields] == [field.id for field in TABLE.fields]
    assert [dict(field.metadata) for field in declared.fields] == [{}, metadata]


@pytest.mark.parametrize(
    "rows",
    [
        pa.schema([("x", pa.string()), ("id", pa.int64())]),
        pa.schema([("id", pa.int64())]),
        pa.schema([("id", pa.int64()), ("x", pa.binary())]),
        pa.schema([("id", pa.int32()), ("x", pa.string())]),
    ],
    ids=["order", "names", "last type", "first type"],
)
def test_other_columns_declare_nothing(rows: pa.Schema) -> None:
    """Such columns replace those of the table and get new ids."""
    assert with_declarations(TABLE, from_arrow(rows)) is None
