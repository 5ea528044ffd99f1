"""The input that verbs take."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.write.arrow_input import can_be_read_twice, one_batch, read_input, without_views

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
    """Every kind of Arrow input must give the same rows, also an iterator that can be read only
    once.
    """
    assert read_input(data).read_all() == TABLE


class Frame(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A frame of another library, as of geopandas."""


@pytest.mark.floors
@pytest.mark.parametrize("kind", [pd.DataFrame, Frame])
def test_unnamed_pandas_indices_are_not_columns(kind: type[pd.DataFrame]) -> None:
    """A default or unnamed index is not data, and the table has no column for it."""
    frame = kind({"a": [1, 2]}, index=["x", "y"])
    assert read_input(frame).read_all().column_names == ["a"]


@pytest.mark.floors
def test_named_pandas_indices_are_columns() -> None:
    """`set_index` moves a column into the index, where its values are still data."""
    frame = pd.DataFrame({"id": [1, 2], "k": ["x", "y"], "a": [3, 4]})
    by_id = frame.set_index("id")
    two_levels = frame.set_index(["id", "k"])
    one_named = two_levels.rename_axis(["id", None])
    assert read_input(by_id).read_all().to_pydict() == frame.to_dict("list")
    assert read_input(two_levels).read_all().to_pydict() == frame.to_dict("list")
    assert read_input(one_named).read_all().to_pydict() == {"id": [1, 2], "a": [3, 4]}


def test_columns_win_over_equal_index_names() -> None:
    """pyarrow would produce two columns of one name."""
    frame = pd.DataFrame({"id": [1, 2]}, index=pd.Index([8, 9], name="id"))
    assert read_input(frame).read_all().to_pydict() == {"id": [1, 2]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pd.Series([1], name="id"), "a pandas Series is not a frame"),
        (pd.Index([1]), "a pandas (Int64)?Index is not a frame"),
        (pd.DataFrame({"a": [1]}).groupby("a"), "is not a frame"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "cannot be converted to Arrow: Duplicate"),
        (pd.DataFrame({"a": [2**70]}), "cannot be converted to Arrow"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), "cannot be converted to Arrow"),
        (pd.DataFrame({"a": [1j]}), "cannot be converted to Arrow"),
    ],
    ids=["series", "index", "groups", "same names", "large number", "sparse", "complex"],
)
def test_unconvertible_pandas_objects_are_refused(data: Any, message: str) -> None:
    """The user must get our error with the reason, not one of pyarrow or an AttributeError."""
    with pytest.raises(InvalidInputError, match=message):
        read_input(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "a int has no rows and columns"),
        ("text", "a str has no rows"),
        (b"bytes", "a bytes has no rows"),
        ({"a": [1]}, "a dict has no rows"),
        (None, "a NoneType has no rows"),
        ([], "expected record batches, but it is empty"),
        ([TABLE], "expected record batches, but it contains a Table"),
        ([1], "expected record batches, but it contains a int"),
    ],
)
def test_unsupported_input_is_refused(data: Any, message: str) -> None:
    """A dict or list of tables has no single meaning as rows."""
    with pytest.raises(InvalidInputError, match=message):
        read_input(data)


class DataFrame(SpeaksArrow):
    """Named like a frame of pandas, as those of other libraries are."""


@pytest.mark.parametrize(
    ("data", "is_safe"),
    [
        (TABLE, True),
        (TABLE.to_batches()[0], True),
        (pd.DataFrame({"a": [1]}), True),
        (Frame({"a": [1]}), True),
        (TABLE.to_reader(), False),
        (TABLE.to_batches(), False),
        (SpeaksArrow(), False),
        (DataFrame(), False),
    ],
    ids=["table", "batch", "pandas", "subclass", "reader", "batches", "c stream", "other frame"],
)
def test_only_some_input_can_be_repeated(data: Any, is_safe: bool) -> None:
    """After a conflict, an upsert reads its input again, or keeps the rows of a stream."""
    assert can_be_read_twice(data) == is_safe
    if not isinstance(data, pd.DataFrame):
        assert read_input(data).read_all() == TABLE


def test_all_items_must_be_batches() -> None:
    """The rows of another object would be lost."""
    (batch,) = TABLE.to_batches()
    with pytest.raises(InvalidInputError, match="must have the same schema"):
        read_input([batch, "rows"]).read_all()


def test_columns_beyond_two_gigabytes_are_refused() -> None:
    """Arrow divides such a column, and an upsert needs all rows at once."""
    divided = SimpleNamespace(
        schema=TABLE.schema,
        combine_chunks=lambda: pa.Table.from_batches(TABLE.to_batches(max_chunksize=1)),
    )
    with pytest.raises(InvalidInputError, match="2 rows are too many for one upsert"):
        one_batch(divided)  # type: ignore[arg-type]


def test_batches_of_different_schemas_are_refused() -> None:
    """Rows of a later batch must not be dropped or shifted because the first had other columns."""
    batches = [*TABLE.to_batches(), pa.RecordBatch.from_pydict({"a": [1]})]
    with pytest.raises(InvalidInputError, match="same schema"):
        read_input(batches).read_all()


NESTINGS: dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]] = {
    "column": (lambda part: part, lambda value: value),
    "struct": (lambda part: pa.struct([("a", part)]), lambda value: {"a": value}),
    "list": (pa.list_, lambda value: [value]),
    "large list": (pa.large_list, lambda value: [value]),
    "map": (lambda part: pa.map_(pa.string(), part), lambda value: [("k", value)]),
}


@pytest.mark.parametrize("inner", NESTINGS)
@pytest.mark.parametrize("outer", NESTINGS)
@pytest.mark.parametrize(
    ("view", "plain", "value"),
    [
        (pa.string_view(), pa.large_string(), "x"),
        (pa.binary_view(), pa.large_binary(), b"\xff"),
    ],
    ids=["string", "binary"],
)
def test_no_view_remains_at_any_depth(
    outer: str, inner: str, view: pa.DataType, plain: pa.DataType, value: str | bytes
) -> None:
    """Arrow has no kernels for views, so one that remains fails in the middle of an upsert."""
    (outer_type, outer_value), (inner_type, inner_value) = NESTINGS[outer], NESTINGS[inner]
    expected = outer_type(inner_type(plain))
    values = [outer_value(inner_value(value)), None]
    rows = pa.table({"v": pa.array(values, outer_type(inner_type(view)))})
    batch = one_batch(rows)
    assert batch.schema.field("v").type == expected
    assert batch.column("v").to_pylist() == values


@pytest.mark.parametrize(
    ("views", "plain"),
    [
        (pa.map_(pa.string_view(), pa.int32()), pa.map_(pa.large_string(), pa.int32())),
        (pa.list_(pa.binary_view(), 2), pa.list_(pa.large_binary(), 2)),
        (
            pa.struct([pa.field("a", pa.string_view(), nullable=False, metadata={"k": "v"})]),
            pa.struct([pa.field("a", pa.large_string(), nullable=False, metadata={"k": "v"})]),
        ),
    ],
)
def test_only_view_types_change(views: pa.DataType, plain: pa.DataType) -> None:
    """Keys, lengths and the metadata of fields belong to the column's declaration."""
    actual = without_views(pa.schema([("v", views)]))
    assert actual.equals(pa.schema([("v", plain)]), check_metadata=True)
