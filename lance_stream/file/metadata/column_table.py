"""The metadata of a file's columns, read on first use and cached."""

from collections.abc import Sequence

from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.metadata.columns import ColumnMetadata, decode_column_metadata, holds_blobs


class ColumnTable:
    """The columns of a file, by index.

    Args:
        ranges: The ranges of their metadata.
        data_stop: The end of the file's pages.
    """

    def __init__(self, ranges: Sequence[ByteRange], data_stop: int) -> None:
        self._ranges = ranges
        self._data_stop = data_stop
        self._columns: dict[int, ColumnMetadata] = {}

    def __getitem__(self, index: int) -> ColumnMetadata:
        """Return a loaded column."""
        return self._columns[index]

    def load(self, indices: Sequence[int]) -> ByteRequests[list[ColumnMetadata]]:
        """Return some columns: one request, or none if they are cached.

        Raises:
            BadDataError: They are damaged, or a column does not exist.
        """
        missing = [index for index in dict.fromkeys(indices) if index not in self._columns]
        for index in missing:
            if not 0 <= index < len(self._ranges):
                raise CorruptDataError(
                    f"column {index} is referred to, but the file has {len(self._ranges)} columns"
                )
        if missing:
            buffers = yield [self._ranges[index] for index in missing]
            for index, buffer in zip(missing, buffers, strict=True):
                column = decode_column_metadata(buffer, self._data_stop)
                holds_blobs(column)  # raises for unknown column encodings
                self._columns[index] = column
        return [self._columns[index] for index in indices]
