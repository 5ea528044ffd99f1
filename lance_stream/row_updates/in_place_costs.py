"""What changing rows in place costs, and what writing them elsewhere does: measured in bytes.

    in place      read and write the changed columns of all rows of the fragment
    elsewhere     read and write the other columns of the changed rows

A value costs time even if it takes few bytes; scattered values are read and decoded together with
others around them; and a row that moves takes entries in a deletion file and in the manifest. These
are counted as bytes, too: about as many as are read or written in that time (decision 041).

The sizes of columns come from the metadata of data files, which both ways read anyway. Where the
manifest alone shows that rows are to be moved, no file is opened: a few rows of a large fragment.
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
"""What decoding, replacing and encoding one value costs, beside its bytes."""

MOVED_ROW_BYTES: Final = 300
"""What moving one row costs, beside the bytes of its values."""

SCATTERED_BYTES: Final = 4 << 10
"""What reading one value that is apart from others costs: a chunk of a page."""

STAMP_BYTES: Final = 24
"""What a run of row versions costs in the manifest, which each later version repeats."""

SIDE_BLOB_BYTES: Final = 64 << 10
"""The assumed size of a blob whose bytes are not in the data file: larger than any that is."""


@dataclass(frozen=True)
class FragmentCosts:
    """What the two ways to change some rows of a fragment depend on.

    Attributes:
        num_rows: How many rows the fragment has, including deleted ones.
        num_changed: How many of them change.
        num_runs: How many runs of adjacent rows these are.
        num_columns: How many columns without parts have new values.
        changed_bytes: What these columns take in the data files.
        other_bytes: What all others take; a bound if the data files have not been opened.
        num_others: How many columns without parts the others are.
        num_side_blobs: How many columns of each row store their bytes in other files.
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
        """Return what the manifest shows: no size of the columns, and all bytes as the others'.

        If changing in place is not cheaper so, it is not with the sizes of columns, either.

        Args:
            table: The version that is changed.
            fragment: The fragment.
            fields: The columns with new values.
            offsets: (n,) u32, ascending: the changed rows.
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
        """What changing the rows in place costs."""
        reads = self.num_rows > self.num_changed
        stamps = min(2 * self.num_runs + 1, self.num_rows) * STAMP_BYTES
        return (
            self.changed_bytes * (2 if reads else 1)
            + self.num_rows * self.num_columns * VALUE_BYTES
            + stamps
        )

    @property
    def bytes_elsewhere(self) -> int:
        """What writing them elsewhere, whole, costs."""
        written = (self.changed_bytes + self.other_bytes) * self.num_changed // self.num_rows
        scattered = self.num_others * SCATTERED_BYTES * self.num_changed
        read = min(self.other_bytes, max(written, scattered))
        side = self.num_side_blobs * SIDE_BLOB_BYTES * self.num_changed
        return read + written + 2 * side + self.num_changed * MOVED_ROW_BYTES

    @property
    def is_cheaper_in_place(self) -> bool:
        """Whether changing the rows in place costs less."""
        return self.bytes_in_place < self.bytes_elsewhere


def measured(
    table: TableVersion, fragment: Fragment, fields: Sequence[Field], costs: FragmentCosts
) -> FragmentCosts:
    """Return the same with the sizes of columns, from the metadata of the fragment's files.

    Args:
        table: The version that is changed.
        fragment: The fragment.
        fields: The columns with new values.
        costs: What the manifest shows.
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
