"""The input that verbs take."""

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.write.arrow_input import read_input

TABLE = pa.table({"a": [1, 2], "b": ["x", None]})


class SpeaksArrow:
    """Like a polars frame: not an Arrow class, but it exports a C stream."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


@pytest.mark.floors
@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_batches(max_chunksize=1),
        (batch for batch in TABLE.to_batches(max_chunksize=1)),
        TABLE.to_reader(),
        SpeaksArrow(),
    ],
    ids=["table", "batch", "batches", "generator", "reader", "c stream"],
)
def test_tabular_input_becomes_batches(data: Any) -> None:
    assert read_input(data).read_all() == TABLE


@pytest.mark.floors
def test_pandas_indices_are_not_columns() -> None:
    frame = pd.DataFrame({"a": [1, 2]}, index=["x", "y"])
    assert read_input(frame).read_all().column_names == ["a"]


@pytest.mark.parametrize("data", [5, "text", {"a": [1]}, [], [TABLE], [1], None], ids=repr)
def test_unsupported_input_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInputError):
        read_input(data)


def test_batches_of_different_schemas_are_refused() -> None:
    batches = [*TABLE.to_batches(), pa.RecordBatch.from_pydict({"a": [1]})]
    with pytest.raises(InvalidInputError, match="same schema"):
        read_input(batches).read_all()
