"""Bare data files, written and read by us; every request is counted."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.byte_ranges import Buffer, ByteRange, answer, read_from
from lance_stream.file.metadata.columns import fields_with_column
from lance_stream.file.reader import FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.fields import assign_ids


def written_by_us(
    batches: Sequence[pa.RecordBatch], version: FileVersion, schema: pa.Schema, **options: Any
) -> bytes:
    """Return the bytes of a file that we write."""
    writer = FileWriter(assign_ids(from_arrow(schema)), version, **options)
    parts = [part for batch in batches for part in writer.write(_as_stored(batch, schema))]
    return b"".join([*parts, *writer.finish()[0]])


def _as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the types of a file, as a dataset does before writing."""
    stored = to_arrow(from_arrow(schema))
    if batch.schema.equals(stored, check_metadata=True):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, stored, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


class Reading:
    """A file that we read.

    Attributes:
        schema: Its columns.
        num_rows: Its rows.
        rounds: The ranges of each round of requests so far.
        answers: Gives the bytes of ranges without counting them.
    """

    def __init__(self, data: bytes) -> None:
        self.answers = read_from(data)
        self.rounds: list[list[ByteRange]] = []
        self.reader: FileReader = answer(open_file(len(data)), self._ranges)
        metadata = self.reader.metadata
        self.fields = {field.name: field for field in metadata.schema.fields}
        self.schema: pa.Schema = to_arrow(metadata.schema)
        self.num_rows = metadata.num_rows
        columns = [
            value
            for field in metadata.schema.fields
            for value in fields_with_column(field, metadata.version)
        ]
        self._column_of = {entry.id: column for column, entry in enumerate(columns)}

    def _ranges(self, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self.rounds.append(list(ranges))
        return self.answers(ranges)

    @property
    def bytes_read(self) -> int:
        """How many bytes were requested so far."""
        return sum(span.size_bytes for ranges in self.rounds for span in ranges)

    def read(self, names: Iterable[str], start: int, stop: int) -> list[pa.Array]:
        """Return some rows that follow each other."""
        fields = [self.fields[name] for name in names]
        return answer(self.reader.read(fields, self._column_of, start, stop), self._ranges)

    def take(self, names: Iterable[str], offsets: Sequence[int]) -> list[pa.Array]:
        """Return some rows."""
        fields = [self.fields[name] for name in names]
        row_offsets = np.array(offsets, np.uint64)
        return answer(self.reader.take(fields, self._column_of, row_offsets), self._ranges)
