"""Converts a user's input to a stream of Arrow batches.

Tables, record batches and their readers are used directly. polars frames, and other objects with
Arrow's C stream interface, are read through it, without a copy where possible. pandas frames are
converted.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.ledger.row_digests import RowsDigest, add_up, digest_of
from lance_stream.write.dictionary_nulls import with_nulls_of_rows

ArrowInput: TypeAlias = Any
"""Table, RecordBatch, RecordBatchReader, an iterable of batches, a pandas or polars frame, or any
object with `__arrow_c_stream__`."""


def read_input(data: ArrowInput) -> pa.RecordBatchReader:
    """Return the rows of a user's input as a stream of batches with the same schema.

    Nulls among the values of dictionaries are moved to the rows (`dictionary_nulls`).

    Raises:
        InvalidInputError: It has no rows and columns, or its batches have different schemas.
    """
    return with_nulls_of_rows(_reader_of(data))


def digest_rows(data: ArrowInput) -> RowsDigest:
    """Return the number of some rows, and a digest that identifies them in any order.

    Args:
        data: A pyarrow Table, RecordBatches, a RecordBatchReader, or a pandas or polars frame.

    Returns:
        `num_rows`, and the digest as `text`. The sum of the digests of parts is that of the whole.

    Raises:
        InvalidInputError: The data has no rows and columns.
        UnsupportedFeatureError: A column's type has no digest, and cannot be stored in a table.
    """
    return add_up(map(digest_of, read_input(data)))


def _reader_of(data: ArrowInput) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if is_frame_of_pandas(data):
        return _table_of_frame(data).to_reader()
    if _is_of_pandas(type(data)):
        raise InvalidInputError(
            f"a pandas {type(data).__name__} is not a frame; pass a DataFrame, for example "
            "series.to_frame('column')"
        )
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"the data cannot be converted to Arrow: {error}") from None
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        return _read_batches(iter(data))
    raise InvalidInputError(
        f"a {type(data).__name__} has no rows and columns; pass a pyarrow Table, RecordBatches, a "
        "RecordBatchReader, or a pandas or polars frame"
    )


def can_be_read_twice(data: ArrowInput) -> bool:
    """Return whether a user's input certainly has the same rows when it is read again."""
    return isinstance(data, pa.Table | pa.RecordBatch) or is_frame_of_pandas(data)


def is_frame_of_pandas(data: Any) -> bool:
    """Return whether an object is a DataFrame of pandas; before pandas 2.2 it offers no stream."""
    return any(base.__name__ == "DataFrame" and _is_of_pandas(base) for base in type(data).__mro__)


def _is_of_pandas(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pandas"


def _table_of_frame(frame: Any) -> pa.Table:
    """Convert a pandas frame, with the named levels of its index as first columns.

    An unnamed level only numbers the rows, and is omitted. A named one has values that would
    otherwise be lost: `frame.set_index("id")`.

    Raises:
        InvalidInputError: Two columns have the same name, or Arrow has no type for a value.
    """
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    try:
        columns = frame.reset_index(level=named) if named else frame
        # Not through the C stream, which also keeps unnamed levels.
        return pa.Table.from_pandas(columns, preserve_index=False)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise InvalidInputError(f"the data cannot be converted to Arrow: {error}") from None


def _read_batches(batches: Iterator[Any]) -> pa.RecordBatchReader:
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        content = "it is empty" if first is None else f"it contains a {type(first).__name__}"
        raise InvalidInputError(
            f"expected record batches, but {content}. Pass Python objects as a table: "
            "pa.Table.from_pylist([{'id': 1}]), with schema= if there may be no rows"
        )
    schema = first.schema

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(schema):
                raise InvalidInputError("all batches of one input must have the same schema")
            yield batch

    return pa.RecordBatchReader.from_batches(schema, checked())


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema without view types, whose rows Arrow cannot take by index."""
    return pa.schema([field.with_type(_without_views(field.type)) for field in schema])


def _without_views(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(arrow):
        return pa.large_string()
    if pa.types.is_binary_view(arrow):
        return pa.large_binary()
    if pa.types.is_struct(arrow):
        return pa.struct([part.with_type(_without_views(part.type)) for part in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(_without_views(arrow.value_type)))
    if pa.types.is_large_list(arrow):
        return pa.large_list(arrow.value_field.with_type(_without_views(arrow.value_type)))
    if pa.types.is_fixed_size_list(arrow):
        item = arrow.value_field.with_type(_without_views(arrow.value_type))
        return pa.list_(item, arrow.list_size)
    if pa.types.is_map(arrow):
        key, item = (
            part.with_type(_without_views(part.type))
            for part in (arrow.key_field, arrow.item_field)
        )
        return pa.map_(key, item, arrow.keys_sorted)
    return arrow


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch.

    Raises:
        InvalidInputError: A column is too large for one batch.
    """
    plain = without_views(rows.schema)
    table = (rows if plain.equals(rows.schema) else rows.cast(plain)).combine_chunks()
    batches = table.to_batches()
    if len(batches) > 1:
        raise InvalidInputError(
            f"{table.num_rows} rows are too many for one upsert: a string or binary column exceeds "
            "2 GiB. Split them into several upserts"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
