"""The files of an index: Lance files with flat columns, opened once and read in parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.byte_ranges import ByteRequests, ReadRanges, answer
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.reader import TAIL_BYTES, FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field
from lance_stream.storage.store import Store

_VARIABLE_WIDTH: Final = ("string", "binary")
_FIRST_GROUP: Final = 64


class IndexFile:
    """An open file of an index; has no reference to a store, so that the process can cache it.

    Args:
        reader: The reader of the file.
        names: The required columns and their logical types; None for any type.

    Raises:
        CorruptDataError: A column is missing, or of another type.
        UnsupportedFeatureError: The file is of version 0.1.
    """

    def __init__(self, reader: FileReader, names: Mapping[str, str | None]) -> None:
        if reader.metadata.version is FileVersion.V0_1:
            raise UnsupportedFeatureError("the index has files of file version 0.1")
        stored = reader.metadata.schema.fields
        if tuple(field.name for field in stored) != tuple(names):
            raise CorruptDataError(
                f"a file of an index has columns {[field.name for field in stored]} instead of "
                f"{list(names)}"
            )
        for field in stored:
            if names[field.name] not in (None, field.logical_type) or field.children:
                raise CorruptDataError(
                    f"column {field.name!r} of an index has type {field.logical_type} instead of "
                    f"{names[field.name]}"
                )
        self._reader = reader
        self._column_by_field_id = {field.id: index for index, field in enumerate(stored)}
        self.fields: dict[str, Field] = {field.name: field for field in stored}
        if len(self._column_by_field_id) < len(stored):
            raise CorruptDataError("two columns of an index have the same id")

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._reader.metadata.num_rows

    @property
    def metadata(self) -> Mapping[str, bytes]:
        """The metadata of the schema."""
        return self._reader.metadata.schema.metadata

    @property
    def cached_bytes(self) -> int:
        """The approximate size in memory."""
        return min(self._reader.metadata.size_bytes, 2 * TAIL_BYTES)

    def read(self, read_ranges: ReadRanges, start: int, stop: int, *names: str) -> list[pa.Array]:
        """Return the rows from `start` to `stop` of columns."""
        fields = [self.fields[name] for name in names]
        return answer(self._reader.read(fields, self._column_by_field_id, start, stop), read_ranges)

    def whole(self, read_ranges: ReadRanges, max_bytes: int, *names: str) -> list[pa.Array]:
        """Return all rows of columns.

        A small file can contain a long string that many rows repeat, so columns of variable width
        are read in groups of rows.

        Args:
            read_ranges: Reads the file.
            max_bytes: The maximum size of the columns in memory.
            *names: The columns.

        Raises:
            UnsupportedFeatureError: The columns are larger.
            BadDataError: The file is damaged.
        """
        types = [self.fields[name].logical_type for name in names]
        if not any(type_name.endswith(_VARIABLE_WIDTH) for type_name in types):
            return self.read(read_ranges, 0, self.num_rows, *names)
        columns: list[list[pa.Array]] = []
        num_bytes = 0
        for group in self.groups(read_ranges, np.arange(self.num_rows), max_bytes, *names):
            num_bytes += sum(int(array.nbytes) for array in group)
            if num_bytes > max_bytes:
                raise UnsupportedFeatureError(
                    f"the columns {list(names)} of an index take more than {max_bytes} bytes"
                )
            columns.append(group)
        if not columns:
            return self.read(read_ranges, 0, 0, *names)
        return [pa.concat_arrays(arrays) for arrays in zip(*columns, strict=True)]

    def groups(
        self, read_ranges: ReadRanges, rows: Positions, max_bytes: int, *names: str
    ) -> Iterator[list[pa.Array]]:
        """Yield rows, ascending, of columns, in groups of at most about `max_bytes`.

        The size of a group is estimated from that of the previous group, which has at least a
        sixteenth of its rows.
        """
        first, count = 0, _FIRST_GROUP
        while first < len(rows):
            rows_of_group = rows[first : first + count]
            group = self.rows(read_ranges, rows_of_group, *names)
            yield group
            first += count
            num_bytes = max(sum(int(array.nbytes) for array in group), 1)
            count = max(1, min(16 * count, max_bytes * len(rows_of_group) // num_bytes))

    def rows(self, read_ranges: ReadRanges, rows: Positions, *names: str) -> list[pa.Array]:
        """Return one or more rows, ascending, of columns."""
        start, stop = int(rows[0]), int(rows[-1]) + 1
        if stop - start == len(rows):
            return self.read(read_ranges, start, stop, *names)
        fields = [self.fields[name] for name in names]
        requests: ByteRequests[list[pa.Array]] = self._reader.take(
            fields, self._column_by_field_id, rows.astype(np.uint64)
        )
        return answer(requests, read_ranges)


@dataclass(frozen=True)
class IndexFolder:
    """The files of an index, or of one segment of an index.

    Attributes:
        store: The store.
        folder: The folder of the files in the store.
        sizes: The sizes of files by name, as far as the manifest states them.
    """

    store: Store
    folder: str
    sizes: Mapping[str, int]

    def ranges_of(self, name: str) -> ReadRanges:
        """Return a function that reads ranges of a file."""
        return lambda ranges: self.store.read_ranges(f"{self.folder}/{name}", ranges)

    def open(
        self, name: str, names: Mapping[str, str | None], max_bytes: int | None = None
    ) -> IndexFile:
        """Open a file with one request, or up to three for a large file.

        Args:
            name: The name of the file.
            names: The required columns, as for `IndexFile`.
            max_bytes: The maximum size of the file.

        Raises:
            BadDataError: The file is damaged, too large, or has other columns.
            NotFoundError: The file does not exist.
        """
        size_bytes = self.sizes.get(name) or self.store.size(f"{self.folder}/{name}")
        if max_bytes is not None and size_bytes > max_bytes:
            raise UnsupportedFeatureError(
                f"the file {name!r} of an index has {size_bytes} bytes, more than {max_bytes}"
            )
        return IndexFile(answer(open_file(size_bytes, TAIL_BYTES), self.ranges_of(name)), names)
