"""Work units: which rows and columns of one fragment to read; picklable and self-contained.

The driver plans them from the manifest alone: it opens no data file, not even to estimate sizes.
Workers read them (`fragment`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Counts
from lance_stream.errors import InvalidInputError
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.blobs import with_descriptions
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.projections import project
from lance_stream.schema.system_columns import (
    ROW_ADDRESS,
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.lineage.row_ids import MAX_PHYSICAL_ROWS

if TYPE_CHECKING:  # workers have no version of a table
    from lance_stream.snapshot.table_version import TableVersion


BYTES: Final = "bytes"
"""Blob columns are returned as large_binary."""

DESCRIPTORS: Final = "descriptors"
"""Blob columns are returned as stored: as locations of the bytes."""

READABLE_SYSTEM_COLUMNS: Final = (
    ROW_ID,
    ROW_ADDRESS,
    ROW_CREATED_AT_VERSION,
    ROW_LAST_UPDATED_AT_VERSION,
)
"""System columns that a scan can return, in this order."""

_BYTES_PER_ROW: Final = 100
"""The assumed size of a row if the writer did not record the sizes of its files."""


@dataclass(frozen=True)
class WorkUnit:
    """Rows and columns of one fragment to read; picklable and self-contained.

    Attributes:
        files: The table's files.
        version: The version that is read, for messages.
        fragment: The fragment's encoded message from the manifest.
        schema: All columns of the table at that version.
        columns: The columns to read, as for `schema.projections.project`.
        system_columns: Names of `READABLE_SYSTEM_COLUMNS`, to add after the columns.
        has_stable_row_ids: Whether `_rowid` is a stable id; otherwise it is the row address.
        offsets: (n,) u32 row offsets, ascending, unique, deleted or live; None for all live rows
            from `start` to `stop`.
        start: First row offset, if `offsets` is None.
        stop: One past the last row offset; None for the fragment's end.
        filter: A SQL expression; rows that do not match are skipped.
        batch_size: The maximum number of rows in a batch; None for batches of about 32 MB.
        blob_handling: Whether blob columns are returned as `BYTES` or as `DESCRIPTORS`.
        include_deleted: Whether deleted rows are also returned, if `offsets` is None.
        fields: The columns to read, instead of `columns`: fields of `schema`, possibly without
            some of their children.
    """

    files: OpenFiles
    version: int
    fragment: bytes
    schema: Schema
    columns: tuple[str, ...] = ()
    system_columns: tuple[str, ...] = ()
    has_stable_row_ids: bool = True
    offsets: npt.NDArray[np.uint32] | None = None
    start: int = 0
    stop: int | None = None
    filter: str | None = None
    batch_size: int | None = None
    blob_handling: str = BYTES
    include_deleted: bool = False
    fields: tuple[Field, ...] | None = None

    @property
    def projected(self) -> Schema:
        """The columns to read."""
        if self.fields is not None:
            return Schema(self.fields)
        return projected(self.schema, self.columns, self.blob_handling)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches."""
        return output_schema(self.projected, self.system_columns)


def unit_of(table: "TableVersion", index: int, **options: Any) -> WorkUnit:
    """Return the work unit that reads one fragment of a version.

    Args:
        table: The version.
        index: The fragment's index in its manifest.
        options: Attributes of `WorkUnit` that state what to read.
    """
    return WorkUnit(
        files=table.files,
        version=table.version,
        fragment=table.manifest.fragments.raw(index),
        schema=table.schema,
        has_stable_row_ids=table.has_stable_row_ids,
        **options,
    )


def size_of(unit: WorkUnit) -> tuple[int, int]:
    """Return the maximum number of rows of a unit, and their approximate size in bytes."""
    fragment = decode_fragment(unit.fragment)
    return _size(unit, fragment.physical_rows, stored_bytes(fragment))


def sizes_of(units: Sequence[WorkUnit]) -> list[tuple[int, int]]:
    """Return the size of each unit, like `size_of`, without decoding fragments."""
    fragments = FragmentList(unit.fragment for unit in units)
    stated = np.minimum(fragments.numbers.physical_rows, np.uint64(MAX_PHYSICAL_ROWS))
    num_rows = stated.astype(np.int64)
    num_bytes = _stored_bytes(fragments.file_sizes.num_bytes, num_rows)
    return list(map(_size, units, num_rows.tolist(), num_bytes.tolist()))


def _size(unit: WorkUnit, physical_rows: int, file_bytes: int) -> tuple[int, int]:
    if unit.offsets is not None:
        num_rows = len(unit.offsets)
    else:
        stop = physical_rows if unit.stop is None else unit.stop
        num_rows = max(stop - unit.start, 0)
    return num_rows, file_bytes * num_rows // max(physical_rows, 1)


def stored_bytes(fragment: Fragment) -> int:
    """Return the size of a fragment's data files in bytes, estimated if not recorded."""
    return sum(file.size_bytes for file in fragment.files) or _BYTES_PER_ROW * max(
        fragment.physical_rows, 1
    )


def stored_bytes_of(table: "TableVersion") -> Counts:
    """Return the size of the data files of each fragment of a version; see `stored_bytes`.

    Returns:
        (num_fragments,) i64, in bytes.
    """
    sizes = table.manifest.fragments.file_sizes
    return _stored_bytes(sizes.num_bytes, table.row_counts.physical)


def _stored_bytes(stated: Counts, physical_rows: Counts) -> Counts:
    return np.where(stated > 0, stated, _BYTES_PER_ROW * np.maximum(physical_rows, 1))


def check_blob_handling(blob_handling: str) -> None:
    """Raise unless `blob_handling` has a valid value.

    Raises:
        InvalidInputError: The value is invalid.
    """
    if blob_handling not in (BYTES, DESCRIPTORS):
        raise InvalidInputError(
            f"blob_handling must be {BYTES!r} or {DESCRIPTORS!r}, not {blob_handling!r}"
        )


def projected(schema: Schema, columns: Sequence[str], blob_handling: str) -> Schema:
    """Return the schema of the requested columns, in the requested order."""
    part = project(schema, columns)
    return with_descriptions(part) if blob_handling == DESCRIPTORS else part


def output_schema(schema: Schema, system_columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of the columns, followed by the system columns."""
    arrow = to_arrow(schema)
    for name in system_columns:
        arrow = arrow.append(pa.field(name, pa.uint64(), nullable=False))
    return arrow
