"""What a file says of itself, before any of its columns."""

from dataclasses import dataclass

from lance_stream.byte_ranges import ByteRange
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Schema


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """What a file says of itself.

    Attributes:
        version: The file's version.
        num_rows: Rows in each top-level column.
        schema: The schema that the file's writer had; tables go by their own, and by field ids.
        column_ranges: Where the metadata of each column stand.
        buffer_ranges: Where the buffers stand that belong to the file as a whole.
        size_bytes: The size of the file.
    """

    version: FileVersion
    num_rows: int
    schema: Schema
    column_ranges: tuple[ByteRange, ...]
    buffer_ranges: tuple[ByteRange, ...]
    size_bytes: int
