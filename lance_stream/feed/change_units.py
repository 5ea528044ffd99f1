"""Work units of the change feed, and how a worker reads them.

A `ChangeUnit` is picklable and self-contained: a worker needs no manifest to read it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.feed.value_conversion import ValueSource, convert
from lance_stream.file.blocks.arrow_blocks import array_from_numpy
from lance_stream.read.fragment import FragmentReader
from lance_stream.read.prefetch import num_readers, plan_batches, read_ahead
from lance_stream.read.selections import Selection
from lance_stream.read.units import WorkUnit
from lance_stream.schema.system_columns import (
    CHANGE_COLUMNS,
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)

DELETE: Final = "delete"
UPDATE_PREIMAGE: Final = "update_preimage"
UPDATE_POSTIMAGE: Final = "update_postimage"
INSERT: Final = "insert"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

STAMPS: Final = (ROW_ID, ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)


@dataclass(frozen=True)
class ChangeUnit:
    """Row changes of one type that one version made in one fragment; picklable.

    Attributes:
        unit: The rows, in the version from which they are read.
        change_type: "delete", "update_preimage", "update_postimage" or "insert".
        commit_version: The version that made the change.
        commit_timestamp: When it was committed, in UTC.
        sources: For each of the feed's columns except the change columns, the part of `unit` that
            it is built from; None if the version has no such column.
        arrow_schema: The feed's columns, without the change columns.
    """

    unit: WorkUnit
    change_type: str
    commit_version: int
    commit_timestamp: datetime
    sources: tuple[ValueSource | None, ...]
    arrow_schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """The number of changes."""
        return 0 if self.unit.offsets is None else len(self.unit.offsets)


def read_changes(units: Sequence[ChangeUnit]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of work units in order, and read ahead.

    The columns are those of the table, then the change columns.

    Raises:
        BadDataError: A file is damaged, or uses an unsupported feature.
        NotFoundError: A file no longer exists: its version was cleaned up.
    """
    work_units = [unit.unit for unit in units]
    reads = (
        planned.read_with(_read_changes, units[planned.unit_index])
        for planned in plan_batches(work_units)
    )
    return read_ahead(reads, num_readers(work_units))


def _read_changes(unit: ChangeUnit, reader: FragmentReader, selection: Selection) -> pa.RecordBatch:
    batch = reader.read(selection)
    columns = []
    for field, source in zip(unit.arrow_schema, unit.sources, strict=True):
        if source is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        columns.append(convert(batch.column(source.index), source, field.type))
    num_rows = batch.num_rows
    micros = (unit.commit_timestamp - _EPOCH) // timedelta(microseconds=1)
    constants = [
        _repeat_text(unit.change_type, num_rows),
        array_from_numpy(np.full(num_rows, unit.commit_version, np.int64), pa.int64()),
        array_from_numpy(np.full(num_rows, micros, np.int64), pa.timestamp("us", "UTC")),
    ]
    stamps = [batch.column(name) for name in STAMPS]
    return pa.RecordBatch.from_arrays(
        columns + constants + stamps, schema=feed_schema(unit.arrow_schema)
    )


def _repeat_text(text: str, num_rows: int) -> pa.Array:
    """Return an array that repeats a text; a scalar for `pyarrow.repeat` would import pandas."""
    data = text.encode()
    offsets = np.arange(num_rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * num_rows)]
    return pa.Array.from_buffers(pa.string(), num_rows, buffers, 0)


def check_names(table_schema: pa.Schema) -> None:
    """Raise if columns of the table have the names of change columns.

    Raises:
        InvalidInputError: The message names the columns.
    """
    duplicates = sorted(set(table_schema.names).intersection(CHANGE_COLUMNS.names))
    if duplicates:
        raise InvalidInputError(
            f"the table's columns {', '.join(duplicates)} have the names of change columns; "
            "select other columns (columns=...), or rename these (rename_columns)"
        )


def without_change_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of changes without its change columns."""
    return batch.select(list(range(batch.num_columns - len(CHANGE_COLUMNS))))


def feed_schema(
    table_schema: pa.Schema, change_columns: Sequence[str] = CHANGE_COLUMNS.names
) -> pa.Schema:
    """Return the feed's columns: the table's columns, then the change columns.

    Args:
        table_schema: The table's columns.
        change_columns: The names of the change columns; by default all.
    """
    return pa.schema([*table_schema, *map(CHANGE_COLUMNS.field, change_columns)])
