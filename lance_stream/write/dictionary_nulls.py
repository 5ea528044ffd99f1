"""Moves nulls among a dictionary's values to the indices.

    dictionary  ["a", null]    indices  [0, 1, null]    rows  "a", null, null
    Arrow counts one null, and considers the second row valid

Checks for nulls, in keys and in non-nullable columns, would miss them, and other readers would find
nulls where a file claims to have none.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def with_nulls_of_rows(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return rows whose dictionaries have no null among their values.

    Args:
        rows: The rows; returned unchanged if they have no dictionaries.
    """
    if not any(map(holds_dictionaries, rows.schema.types)):
        return rows

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            columns = list(map(move_nulls_to_indices, batch.columns))
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def holds_dictionaries(arrow: pa.DataType) -> bool:
    """Return whether a type, or a part of it, is a dictionary."""
    if isinstance(arrow, pa.BaseExtensionType):
        return holds_dictionaries(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return True
    return any(holds_dictionaries(arrow.field(index).type) for index in range(arrow.num_fields))


def move_nulls_to_indices(array: pa.Array) -> pa.Array:
    """Return equal values whose dictionaries have no nulls; the same array if none had."""
    if not holds_dictionaries(array.type):
        return array
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, move_nulls_to_indices(array.storage))
    if pa.types.is_dictionary(array.type):
        return _nulls_in_indices(array)
    if pa.types.is_struct(array.type):
        parts = [
            move_nulls_to_indices(array.field(index)) for index in range(array.type.num_fields)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=mask)
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(array.type) else 2]
    children = [move_nulls_to_indices(array.values)]
    return pa.Array.from_buffers(
        array.type, len(array), buffers, array.null_count, array.offset, children
    )


def _nulls_in_indices(array: pa.DictionaryArray) -> pa.DictionaryArray:
    if not array.dictionary.null_count:
        return array
    values = array.dictionary.drop_null()
    # Maps an old index to the new one; null for the index of a null.
    new_indices = pc.subtract(pc.cumulative_sum(array.dictionary.is_valid().cast(pa.int64())), 1)
    new_indices = pc.if_else(array.dictionary.is_valid(), new_indices, None)
    try:
        indices = new_indices.take(array.indices).cast(array.type.index_type)
    except pa.ArrowIndexError:  # an invalid index, which the cast reports
        return array
    return pa.DictionaryArray.from_arrays(indices, values, ordered=array.type.ordered)
