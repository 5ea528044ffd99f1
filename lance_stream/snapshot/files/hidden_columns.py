"""Row ids and row versions in hidden columns of data files, read on demand.

A column of a million rows takes milliseconds to read, and every batch of a stream asks for some of
its values. So it is read as a whole once enough are asked for, and kept by the process; a few are
picked. A column is known by the name and size of its file: programs that write hidden columns give
random names to files.

Source:  table.proto, DataFragment.column_row_ids and its siblings.
"""

from collections.abc import Callable, Hashable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import U64s
from lance_stream.caches import Cache
from lance_stream.errors import CorruptDataError
from lance_stream.schema.fields import Field
from lance_stream.table.fragments.fragment import DataFile, LineageColumn

CachedNumbers: TypeAlias = npt.NDArray[np.unsignedinteger]
AnyOffsets: TypeAlias = npt.NDArray[np.integer]

MAX_CONNECTIONS_BYTES: Final = 128 << 20
"""How much memory the columns that are kept take at most."""

ROWS_PER_PICK: Final = 256
"""Only the requested values are read if they are fewer than one in this many rows."""

_COLUMN_BYTES: Final = 256


class HiddenColumn:
    """The values of one sequence.

    Args:
        stored: Where they are.
        num_rows: Returns how many rows a data file has.
        read: Returns the rows [start, stop) of a column of a file.
        take: Returns the rows at ascending offsets of a column of a file.
        name: Returns what tells a file from all others.
    """

    def __init__(
        self,
        stored: LineageColumn,
        num_rows: Callable[[DataFile], int],
        read: Callable[[DataFile, Field, int, int], pa.Array],
        take: Callable[[DataFile, Field, U64s], pa.Array],
        name: Callable[[DataFile], Hashable],
    ) -> None:
        self._stored = stored
        self._field = Field("hidden", "uint64", stored.field_id, nullable=False)
        self._num_rows = num_rows
        self._read = read
        self._take = take
        self._name = name

    @property
    def _cached(self) -> CachedNumbers | None:
        return _CACHED.get((self._stored.field_id, self._name(self._file)))

    @property
    def num_ids(self) -> int:
        """How many values there are.

        Raises:
            CorruptDataError: None of the fragment's files has the column, or several have it.
        """
        cached = self._cached
        return len(cached) if cached is not None else self._num_rows(self._file)

    def check_num_rows(self, num_rows: int) -> "HiddenColumn":
        """Return this column, after checking that it has a value for each row.

        Raises:
            CorruptDataError: It does not.
        """
        if self.num_ids != num_rows:
            raise CorruptDataError(
                f"{_described(self._stored)} has {self.num_ids} values, but its fragment "
                f"{num_rows} rows"
            )
        return self

    def to_array(self) -> U64s:
        """Return all values."""
        return self._whole().astype(np.uint64)

    def slice(self, start: int, stop: int) -> U64s:
        """Return the values of the rows [start, stop)."""
        cached = self._cached
        if cached is not None:
            return cached[start:stop].astype(np.uint64)
        return _numbers(self._stored, self._read(self._file, self._field, start, stop))

    def take(self, offsets: AnyOffsets) -> U64s:
        """Return the values of the rows at some offsets."""
        rows = offsets.astype(np.int64, copy=False)
        cached = self._cached
        if cached is None and self._is_few(rows):
            return _numbers(
                self._stored, self._take(self._file, self._field, rows.astype(np.uint64))
            )
        return (self._whole() if cached is None else cached)[rows].astype(np.uint64)

    def _is_few(self, rows: npt.NDArray[np.int64]) -> bool:
        return len(rows) * ROWS_PER_PICK < self.num_ids and bool((rows[1:] > rows[:-1]).all())

    def _whole(self) -> CachedNumbers:
        def read() -> CachedNumbers:
            values = _numbers(
                self._stored, self._read(self._file, self._field, 0, self._num_rows(self._file))
            )
            largest = int(values.max()) if len(values) else 0
            return values.astype(np.min_scalar_type(largest), copy=False)

        return _CACHED.get_or_make((self._stored.field_id, self._name(self._file)), read)

    @property
    def _file(self) -> DataFile:
        if self._stored.file is None:
            raise CorruptDataError(
                "row ids or row versions should be in the hidden column "
                f"{self._stored.field_id}, which {self._stored.num_files or 'no'} data files of "
                "the fragment have: exactly one is needed"
            )
        return self._stored.file


_CACHED: Final = Cache[tuple[int, Hashable], CachedNumbers](
    MAX_CONNECTIONS_BYTES, lambda column: column.nbytes + _COLUMN_BYTES
)


def forget_hidden_columns() -> None:
    """Forget all columns that are kept."""
    _CACHED.clear()


def _numbers(stored: LineageColumn, values: pa.Array) -> U64s:
    if values.type != pa.uint64() or values.null_count:
        raise CorruptDataError(
            f"{_described(stored)} should have uint64 values, but has {values.type} with "
            f"{values.null_count} nulls"
        )
    numbers: U64s = values.to_numpy(zero_copy_only=False)
    return numbers


def _described(stored: LineageColumn) -> str:
    path = stored.file.path if stored.file is not None else None
    return f"the hidden column {stored.field_id} of the data file {path!r}"
