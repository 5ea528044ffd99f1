"""The worker's side of the change feed: some changes of one kind, read and stamped.

A `ChangeUnit` is picklable and says everything; whoever has it needs no manifest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from lance_stream.dataset.casting import cast_batch
from lance_stream.dataset.read_fragment import FragmentReader, Selection, WorkUnit
from lance_stream.dataset.reading_ahead import choose, num_readers, read_ahead
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

STAMPS: Final = (ROW_ID, ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)


@dataclass(frozen=True)
class ChangeUnit:
    """Some changes of one kind, made by one version to rows of one fragment: picklable.

    Attributes:
        unit: The rows, in the version in which they are to be read.
        change_type: "delete", "update_preimage", "update_postimage" or "insert".
        commit_version: The version that made the change.
        commit_timestamp: When it was committed, in UTC.
        sources: For each of the feed's own columns the column of `unit` that it is made of; None
            where that version has none.
        arrow_schema: The feed's own columns, without the change columns.
    """

    unit: WorkUnit
    change_type: str
    commit_version: int
    commit_timestamp: datetime
    sources: tuple[str | None, ...]
    arrow_schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """How many changes there are."""
        return 0 if self.unit.offsets is None else len(self.unit.offsets)


def read_changes(units: Sequence[ChangeUnit]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of some work units, in their order, read a little ahead.

    The columns are the feed's own, then the change columns.

    Raises:
        BadDataError: A file is damaged, or has what is not supported.
        NotFoundError: A file is gone: its version was cleaned up.
    """
    rows = [each.unit for each in units]
    reads = (each.read_by(_read_changes, units[each.place]) for each in choose(rows))
    return read_ahead(reads, num_readers(rows))


def _read_changes(unit: ChangeUnit, reader: FragmentReader, selection: Selection) -> pa.RecordBatch:
    batch = reader.read(selection)
    own = []
    for field, source in zip(unit.arrow_schema, unit.sources, strict=True):
        if source is None:
            own.append(pa.nulls(batch.num_rows, field.type))
            continue
        own.append(_cast(batch.column(source), field))
    num_rows = batch.num_rows
    constants = [
        pa.repeat(pa.scalar(unit.change_type), num_rows),
        pa.repeat(pa.scalar(unit.commit_version, pa.int64()), num_rows),
        pa.repeat(pa.scalar(unit.commit_timestamp, pa.timestamp("us", "UTC")), num_rows),
    ]
    stamps = [batch.column(name) for name in STAMPS]
    return pa.RecordBatch.from_arrays(
        own + constants + stamps, schema=feed_schema(unit.arrow_schema)
    )


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    single = pa.RecordBatch.from_arrays([column], names=[field.name])
    return cast_batch(single, pa.schema([field])).column(0)


def feed_schema(own: pa.Schema) -> pa.Schema:
    """Return the feed's columns, given the table's own among them."""
    for field in CHANGE_COLUMNS:
        own = own.append(field)
    return own
