"""Bare data files, written and read by us and by pylance."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from lance_stream.byte_ranges import answer, read_from
from lance_stream.file.columns import fields_with_column
from lance_stream.file.reader import FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.field_ids import assign_ids


def written_by_us(
    batches: Sequence[pa.RecordBatch], version: FileVersion, schema: pa.Schema, **options: Any
) -> bytes:
    """Return the bytes of a file that we write."""
    writer = FileWriter(assign_ids(from_arrow(schema)), version, **options)
    parts = [part for batch in batches for part in writer.write(_as_stored(batch, schema))]
    return b"".join([*parts, *writer.finish()[0]])


def _as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the types that a file has: what a dataset does before it writes."""
    stored = to_arrow(from_arrow(schema))
    if batch.schema.equals(stored, check_metadata=True):
        return batch
    columns = [
        column if column.type == each.type else column.cast(each.type)
        for column, each in zip(batch.columns, stored, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def write_by_pylance(
    batches: Sequence[pa.RecordBatch],
    path: Path,
    version: FileVersion,
    schema: pa.Schema,
    **options: Any,
) -> None:
    """Make a file with pylance.

    Raises:
        OSError: Or another: pylance does not write this; a panic of its comes as RuntimeError.
    """
    try:
        with LanceFileWriter(str(path), schema, version=version.value, **options) as writer:
            for batch in unsliced(batches):
                writer.write_batch(batch)
    except Exception:
        raise
    except BaseException as error:  # what a panic of its Rust is raised as
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise RuntimeError(f"panic: {error}") from error


def read_by_pylance(path: Path) -> pa.Table:
    """Return all rows of a file, as pylance reads them."""
    try:
        return LanceFileReader(str(path)).read_all().to_table()
    except Exception:
        raise
    except BaseException as error:  # as above
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise RuntimeError(f"panic: {error}") from error


def take_by_pylance(path: Path, places: Sequence[int]) -> pa.Table:
    """Return some rows of a file, as pylance reads them."""
    return LanceFileReader(str(path)).take_rows(list(places)).to_table()


def unsliced(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in arrays that start at their buffers' start.

    pylance does not write all slices rightly, nor does Arrow take from all of them.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return list(pa.ipc.open_stream(sink.getvalue()))


class Reading:
    """A file that we read.

    Attributes:
        schema: Its columns.
        num_rows: Its rows.
    """

    def __init__(self, data: bytes) -> None:
        self._ranges = read_from(data)
        self.reader: FileReader = answer(open_file(len(data)), self._ranges)
        metadata = self.reader.metadata
        self.fields = {each.name: each for each in metadata.schema.fields}
        self.schema: pa.Schema = to_arrow(metadata.schema)
        self.num_rows = metadata.num_rows
        columns = [
            each
            for field in metadata.schema.fields
            for each in fields_with_column(field, metadata.version)
        ]
        self._column_of = {each.id: column for column, each in enumerate(columns)}

    def read(self, names: Iterable[str], start: int, stop: int) -> list[pa.Array]:
        """Return some rows that follow each other."""
        fields = [self.fields[name] for name in names]
        return answer(self.reader.read(fields, self._column_of, start, stop), self._ranges)

    def take(self, names: Iterable[str], places: Sequence[int]) -> list[pa.Array]:
        """Return some rows."""
        fields = [self.fields[name] for name in names]
        wanted = np.array(places, np.uint64)
        return answer(self.reader.take(fields, self._column_of, wanted), self._ranges)
