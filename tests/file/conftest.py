"""Data files in memory, written and read without a disk; every request is counted."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.byte_ranges import ByteRange, answer
from lance_stream.file.metadata.columns import fields_with_column
from lance_stream.file.reader import FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter, WrittenFile
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import Field, Schema, assign_ids
from lance_stream.schema.projections import project


class OpenedFile:
    """A reader of bytes in memory.

    Attributes:
        rounds: The ranges of each round of requests so far.
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.rounds: list[list[ByteRange]] = []
        self.reader: FileReader = answer(open_file(len(data)), self.read_ranges)
        self.schema: Schema = self.reader.metadata.schema
        self.num_rows = self.reader.metadata.num_rows

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.rounds.append(list(ranges))
        return [self._data[span.start : span.stop] for span in ranges]

    @property
    def bytes_read(self) -> int:
        return sum(span.size_bytes for ranges in self.rounds for span in ranges)

    def column_of(self) -> dict[int, int]:
        version = self.reader.metadata.version
        fields: Iterable[Field] = self.schema.walk()
        if version is not FileVersion.V0_1:
            fields = (
                leaf for field in self.schema.fields for leaf in fields_with_column(field, version)
            )
        return {field.id: column for column, field in enumerate(fields)}

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> list[pa.Array]:
        fields = project(self.schema, columns).fields
        requests = self.reader.read(fields, self.column_of(), start, stop)
        return answer(requests, self.read_ranges)

    def take(self, offsets: Iterable[int], columns: Sequence[str] | None = None) -> list[pa.Array]:
        fields = project(self.schema, columns).fields
        row_offsets = np.array(list(offsets), np.uint64)
        return answer(self.reader.take(fields, self.column_of(), row_offsets), self.read_ranges)


class Files:
    """The fixture of the tests of files."""

    def write(
        self, table: pa.Table, version: FileVersion = FileVersion.V2_0, **options: Any
    ) -> tuple[bytes, WrittenFile]:
        writer = FileWriter(assign_ids(from_arrow(table.schema)), version, **options)
        parts = [part for batch in table.to_batches() for part in writer.write(batch)]
        rest, written = writer.finish()
        return b"".join([*parts, *rest]), written

    def open(self, data: bytes) -> OpenedFile:
        return OpenedFile(data)

    def written(self, table: pa.Table, **options: Any) -> OpenedFile:
        return OpenedFile(self.write(table, **options)[0])


@pytest.fixture(scope="session")
def files() -> Files:
    return Files()
