"""The metadata of a file's columns, for tests that look at how pages were encoded."""

from collections.abc import Sequence

from lance_stream.byte_ranges import ReadRanges, answer
from lance_stream.file.metadata.column_table import ColumnTable
from lance_stream.file.metadata.columns import ColumnMetadata
from lance_stream.file.reader import FileReader


def columns_of(
    reader: FileReader, indices: Sequence[int], read_ranges: ReadRanges
) -> list[ColumnMetadata]:
    metadata = reader.metadata
    table = ColumnTable(metadata.column_ranges, metadata.size_bytes)
    return answer(table.load(indices), read_ranges)
