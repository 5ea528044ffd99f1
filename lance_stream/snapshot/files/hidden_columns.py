"""Row ids and row versions in hidden columns of data files, read on demand.

A column of a million rows takes milliseconds to read, and every batch of a stream needs some of its
values. So the first request for many values reads the whole column, and the process caches it; a
few values are read singly. A column is identified by the name and size of its file, because
programs that write hidden columns give random names to files.

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

MAX_CACHED_BYTES: Final = 128 << 20
"""The maximum size of the cached columns."""

MIN_ROWS_PER_VALUE: Final = 256
"""Values are read singly if fewer than one in this many rows is requested."""

_COLUMN_BYTES: Final = 256


class HiddenColumn:
    """The values of a row id or row version sequence that is stored as a hidden column.

    Args:
        stored: The location of the column.
        num_rows: Returns the number of rows of a data file.
        read: Returns the rows [start, stop) of a column of a file.
        take: Returns the rows at ascending offsets of a column of a file.
        name: Returns a unique name of a file.
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
        """The number of values.

        Raises:
            CorruptDataError: Not exactly one of the fragment's files has the column.
        """
        cached = self._cached
        return len(cached) if cached is not None else self._num_rows(self._file)

    def check_num_rows(self, num_rows: int) -> "HiddenColumn":
        """Return this column, after checking its number of values.

        Raises:
            CorruptDataError: The column does not have one value for each row.
        """
        if self.num_ids != num_rows:
            raise CorruptDataError(
                f"{self._description} has {self.num_ids} values, but its fragment has "
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
        return self._numbers(self._read(self._file, self._field, start, stop))

    def take(self, offsets: AnyOffsets) -> U64s:
        """Return the values at row offsets."""
        rows = offsets.astype(np.int64, copy=False)
        cached = self._cached
        if cached is None and self._is_few(rows):
            return self._numbers(self._take(self._file, self._field, rows.astype(np.uint64)))
        return (self._whole() if cached is None else cached)[rows].astype(np.uint64)

    def _is_few(self, rows: npt.NDArray[np.int64]) -> bool:
        return len(rows) * MIN_ROWS_PER_VALUE < self.num_ids and bool((rows[1:] > rows[:-1]).all())

    def _whole(self) -> CachedNumbers:
        def read() -> CachedNumbers:
            num_rows = self._num_rows(self._file)
            values = self._numbers(self._read(self._file, self._field, 0, num_rows))
            largest = int(values.max()) if len(values) else 0
            return values.astype(np.min_scalar_type(largest), copy=False)

        return _CACHED.get_or_make((self._stored.field_id, self._name(self._file)), read)

    def _numbers(self, values: pa.Array) -> U64s:
        if values.type != pa.uint64() or values.null_count:
            raise CorruptDataError(
                f"{self._description} should have uint64 values without nulls, but has "
                f"{values.type} values with {values.null_count} nulls"
            )
        numbers: U64s = values.to_numpy(zero_copy_only=False)
        return numbers

    @property
    def _description(self) -> str:
        return f"hidden column {self._stored.field_id} of data file {self._file.path!r}"

    @property
    def _file(self) -> DataFile:
        if self._stored.file is None:
            raise CorruptDataError(
                "row ids or row versions should be in hidden column "
                f"{self._stored.field_id}, which {self._stored.num_files or 'no'} data files of "
                "the fragment contain instead of one"
            )
        return self._stored.file


_CACHED: Final = Cache[tuple[int, Hashable], CachedNumbers](
    MAX_CACHED_BYTES, lambda column: column.nbytes + _COLUMN_BYTES
)


def clear_hidden_columns() -> None:
    """Empty the cache of columns."""
    _CACHED.clear()
