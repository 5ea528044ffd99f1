"""The metadata of a file as a whole."""

from dataclasses import dataclass

from lance_stream.byte_ranges import ByteRange
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Schema


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """The metadata of a file as a whole.

    Attributes:
        version: The file's version.
        num_rows: Rows in each top-level column.
        schema: The writer's schema; tables use their own, and field ids.
        column_ranges: The ranges of the columns' metadata.
        buffer_ranges: The ranges of the buffers of the file as a whole.
        size_bytes: The size of the file.
    """

    version: FileVersion
    num_rows: int
    schema: Schema
    column_ranges: tuple[ByteRange, ...]
    buffer_ranges: tuple[ByteRange, ...]
    size_bytes: int
