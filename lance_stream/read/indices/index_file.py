"""The files of an index: Lance files with plain columns, opened once and read in parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.byte_ranges import Asking, ReadRanges, answer
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.reader import TAIL_BYTES, FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field
from lance_stream.storage.store import Store

_OF_ANY_LENGTH: Final = ("string", "binary")
_FIRST_GROUP: Final = 64


class IndexFile:
    """An open file of an index; holds no store, so that it can be kept by the process.

    Args:
        reader: Reads its rows.
        names: The columns that it must have, and the logical type of each; None for any type.

    Raises:
        CorruptDataError: A column is missing, or of another type.
        UnsupportedFeatureError: The file is of version 0.1.
    """

    def __init__(self, reader: FileReader, names: Mapping[str, str | None]) -> None:
        if reader.metadata.version is FileVersion.V0_1:
            raise UnsupportedFeatureError("the index has files of version 0.1")
        stored = reader.metadata.schema.fields
        if tuple(field.name for field in stored) != tuple(names):
            raise CorruptDataError(
                f"a file of an index has the columns {[field.name for field in stored]}, not "
                f"{list(names)}"
            )
        for field in stored:
            if names[field.name] not in (None, field.logical_type) or field.children:
                raise CorruptDataError(
                    f"the column {field.name!r} of an index is a {field.logical_type}, not a "
                    f"{names[field.name]}"
                )
        self._reader = reader
        self._column_of = {field.id: index for index, field in enumerate(stored)}
        self.fields: dict[str, Field] = {field.name: field for field in stored}
        if len(self._column_of) < len(stored):
            raise CorruptDataError("two columns of an index have the same id")

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return self._reader.metadata.num_rows

    @property
    def metadata(self) -> Mapping[str, bytes]:
        """The metadata of its schema."""
        return self._reader.metadata.schema.metadata

    @property
    def cached_bytes(self) -> int:
        """About how much memory it takes."""
        return min(self._reader.metadata.size_bytes, 2 * TAIL_BYTES)

    def read(self, read_ranges: ReadRanges, start: int, stop: int, *names: str) -> list[pa.Array]:
        """Return the rows from `start` up to but not including `stop` of some columns."""
        fields = [self.fields[name] for name in names]
        return answer(self._reader.read(fields, self._column_of, start, stop), read_ranges)

    def whole(self, read_ranges: ReadRanges, most_bytes: int, *names: str) -> list[pa.Array]:
        """Return all rows of some columns.

        Args:
            read_ranges: Reads the file.
            most_bytes: How much memory they may take. A small file can state long strings that
                many rows have, so they are read in groups.
            *names: The columns.

        Raises:
            UnsupportedFeatureError: They take more.
            BadDataError: The file is damaged.
        """
        types = [self.fields[name].logical_type for name in names]
        if not any(type_name.endswith(_OF_ANY_LENGTH) for type_name in types):
            return self.read(read_ranges, 0, self.num_rows, *names)
        columns: list[list[pa.Array]] = []
        num_bytes = 0
        for group in self.groups(read_ranges, np.arange(self.num_rows), most_bytes, *names):
            num_bytes += sum(int(array.nbytes) for array in group)
            if num_bytes > most_bytes:
                raise UnsupportedFeatureError(
                    f"the columns {list(names)} of an index take more than {most_bytes} bytes"
                )
            columns.append(group)
        if not columns:
            return self.read(read_ranges, 0, 0, *names)
        return [pa.concat_arrays(arrays) for arrays in zip(*columns, strict=True)]

    def groups(
        self, read_ranges: ReadRanges, rows: Positions, most_bytes: int, *names: str
    ) -> Iterator[list[pa.Array]]:
        """Yield some rows, ascending, of some columns, in groups of about `most_bytes` at most.

        How many bytes the rows of a group take is expected from those of the one before, which
        has a sixteenth as many at least.
        """
        first, count = 0, _FIRST_GROUP
        while first < len(rows):
            rows_of_group = rows[first : first + count]
            group = self.rows(read_ranges, rows_of_group, *names)
            yield group
            first += count
            num_bytes = max(sum(int(array.nbytes) for array in group), 1)
            count = max(1, min(16 * count, most_bytes * len(rows_of_group) // num_bytes))

    def rows(self, read_ranges: ReadRanges, rows: Positions, *names: str) -> list[pa.Array]:
        """Return some rows, ascending, of some columns; at least one row."""
        start, stop = int(rows[0]), int(rows[-1]) + 1
        if stop - start == len(rows):
            return self.read(read_ranges, start, stop, *names)
        fields = [self.fields[name] for name in names]
        asking: Asking[list[pa.Array]] = self._reader.take(
            fields, self._column_of, rows.astype(np.uint64)
        )
        return answer(asking, read_ranges)


@dataclass(frozen=True)
class PartOfIndex:
    """Where the files of an index, or of one segment of it, are stored.

    Attributes:
        store: Their store.
        folder: Their folder in it.
        sizes: Their sizes, by name, if the manifest states them.
    """

    store: Store
    folder: str
    sizes: Mapping[str, int]

    def ranges_of(self, name: str) -> ReadRanges:
        """Return what reads bytes of a file."""
        return lambda ranges: self.store.read_ranges(f"{self.folder}/{name}", ranges)

    def open(
        self, name: str, names: Mapping[str, str | None], most_bytes: int | None = None
    ) -> IndexFile:
        """Open a file: one request, or up to three for a large one.

        Args:
            name: Its name.
            names: The columns that it must have, as for `IndexFile`.
            most_bytes: A larger file is not opened.

        Raises:
            BadDataError: It is damaged, or not what is expected.
            NotFoundError: There is no such file.
        """
        size_bytes = self.sizes.get(name) or self.store.size(f"{self.folder}/{name}")
        if most_bytes is not None and size_bytes > most_bytes:
            raise UnsupportedFeatureError(
                f"the file {name!r} of an index has {size_bytes} bytes, more than {most_bytes}"
            )
        return IndexFile(answer(open_file(size_bytes, TAIL_BYTES), self.ranges_of(name)), names)
