"""The columns in which a history keeps when its rows are valid."""

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.upsert.histories.shadowed_events import (
    END_AT,
    START_AT,
    check_has_history,
    check_history_names,
)

SECONDS = pa.timestamp("s")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([pa.field(START_AT, SECONDS), pa.field(END_AT, SECONDS)], ""),
        ([pa.field(START_AT, SECONDS, nullable=False), pa.field(END_AT, SECONDS)], ""),
        ([pa.field(START_AT, SECONDS), pa.field(END_AT, SECONDS, nullable=False)], "must be null"),
        ([pa.field(START_AT, SECONDS), pa.field(END_AT, pa.int64())], "must have the same type"),
        ([pa.field(START_AT, SECONDS)], f"has no {END_AT}"),
        ([pa.field(END_AT, SECONDS)], f"has no {START_AT}"),
        ([], f"has no {START_AT} and no {END_AT}"),
    ],
)
def test_histories_need_both_columns(columns: list[pa.Field], message: str) -> None:
    """A row without an end is the current one, so that only the end can be null."""
    schema = pa.schema([pa.field("id", pa.int64()), *columns])
    if not message:
        check_has_history(schema)
        return
    with pytest.raises(InvalidInputError, match=message):
        check_has_history(schema)


@pytest.mark.parametrize("name", [START_AT, END_AT])
def test_data_cannot_set_history_columns(name: str) -> None:
    """They follow from the sequence of the changes."""
    check_history_names(["id", "x"])
    with pytest.raises(InvalidInputError, match=name):
        check_history_names(["id", name])
