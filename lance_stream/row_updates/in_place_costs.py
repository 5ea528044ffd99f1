"""Cost model: is it cheaper to change rows in place, or to move them? Costs are in bytes.

    in place      read and write the changed columns of all rows of the fragment
    elsewhere     read and write all other columns of the changed rows

A value costs time even if it has few bytes, scattered values are read and decoded together with
their neighbors, and a moved row needs entries in a deletion file and in the manifest. These costs
are converted to the number of bytes that could be read or written in the same time (decision 041).

The sizes of columns come from the metadata of data files, which are read in any case. If the
manifest already shows that moving is cheaper, no file is opened: a few rows of a large fragment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream.schema.fields import TOMBSTONED_ID, Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import DataFile, Fragment

VALUE_BYTES: Final = 12
"""The cost of decoding, replacing and encoding one value, in addition to its bytes."""

MOVED_ROW_BYTES: Final = 300
"""The cost of moving one row, in addition to the bytes of its values."""

SCATTERED_BYTES: Final = 4 << 10
"""The cost of reading one scattered value: a chunk of a page."""

STAMP_BYTES: Final = 24
"""The cost of a run of row versions in the manifest, which every later version repeats."""

SIDE_BLOB_BYTES: Final = 64 << 10
"""The assumed size of a blob stored outside of the data file: larger than any blob inside."""


@dataclass(frozen=True)
class FragmentCosts:
    """The input of the cost model for some changed rows of a fragment.

    Attributes:
        num_rows: The number of rows of the fragment, including deleted ones.
        num_changed: The number of changed rows.
        num_runs: The number of runs of adjacent changed rows.
        num_columns: The number of leaf columns with new values.
        changed_bytes: The size of these columns in the data files.
        other_bytes: The size of all other columns; an upper bound if no data file was opened.
        num_others: The number of other leaf columns.
        num_side_blobs: The number of other columns that store their bytes in separate blob files.
    """

    num_rows: int
    num_changed: int
    num_runs: int
    num_columns: int
    changed_bytes: int
    other_bytes: int
    num_others: int = 1
    num_side_blobs: int = 0

    @classmethod
    def of(
        cls,
        table: TableVersion,
        fragment: Fragment,
        fields: Sequence[Field],
        offsets: npt.NDArray[np.uint32],
    ) -> "FragmentCosts":
        """Return the input as known from the manifest: all bytes count as `other_bytes`.

        If changing in place is not cheaper with these sizes, it is not with the real sizes either.

        Args:
            table: The version that is changed.
            fragment: The fragment.
            fields: The columns with new values.
            offsets: (n,) u32 offsets of the changed rows, ascending.
        """
        field_ids = {part.id for field in fields for part in field.walk()}
        return cls(
            num_rows=max(table.physical_rows(fragment), 1),
            num_changed=len(offsets),
            num_runs=1 + int(np.count_nonzero(np.diff(offsets.astype(np.int64)) > 1)),
            num_columns=sum(1 for field in fields for _ in field.leaves()),
            changed_bytes=0,
            other_bytes=sum(_size_of(table, file) for file in fragment.files),
            num_others=sum(
                part.id not in field_ids for field in table.schema.fields for part in field.leaves()
            ),
            num_side_blobs=sum(
                part.is_blob_v2 for part in table.schema.walk() if part.id not in field_ids
            ),
        )

    @property
    def bytes_in_place(self) -> int:
        """The cost of changing the rows in place."""
        reads = self.num_rows > self.num_changed
        stamps = min(2 * self.num_runs + 1, self.num_rows) * STAMP_BYTES
        return (
            self.changed_bytes * (2 if reads else 1)
            + self.num_rows * self.num_columns * VALUE_BYTES
            + stamps
        )

    @property
    def bytes_elsewhere(self) -> int:
        """The cost of writing the complete rows elsewhere."""
        written = (self.changed_bytes + self.other_bytes) * self.num_changed // self.num_rows
        scattered = self.num_others * SCATTERED_BYTES * self.num_changed
        read = min(self.other_bytes, max(written, scattered))
        side = self.num_side_blobs * SIDE_BLOB_BYTES * self.num_changed
        return read + written + 2 * side + self.num_changed * MOVED_ROW_BYTES

    @property
    def is_cheaper_in_place(self) -> bool:
        """Whether changing the rows in place is cheaper."""
        return self.bytes_in_place < self.bytes_elsewhere


def measured(
    table: TableVersion, fragment: Fragment, fields: Sequence[Field], costs: FragmentCosts
) -> FragmentCosts:
    """Return the input with the sizes of columns, from the metadata of the fragment's files.

    Args:
        table: The version that is changed.
        fragment: The fragment.
        fields: The columns with new values.
        costs: The input as known from the manifest.
    """
    changed_ids = {part.id for field in fields for part in field.walk()}
    changed_bytes = others = 0
    for file in fragment.files:
        stored_ids = set(file.field_ids)
        stored_changes = [
            field for field in fields if stored_ids & {part.id for part in field.walk()}
        ]
        size = sum(
            buffer.size_bytes
            for column in table.files.stored_pages(file, stored_changes)
            for page in column
            for buffer in page.buffers
        )
        changed_bytes += size
        if stored_ids - changed_ids - {TOMBSTONED_ID}:
            others += max(_size_of(table, file) - size, 0)
    return replace(costs, changed_bytes=changed_bytes, other_bytes=others)


def _size_of(table: TableVersion, file: DataFile) -> int:
    return file.size_bytes or table.files.size_of(file)
