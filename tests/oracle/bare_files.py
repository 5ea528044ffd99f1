"""Bare data files, written and read by pylance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from lance_stream.file.versions import FileVersion


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


def take_by_pylance(path: Path, offsets: Sequence[int]) -> pa.Table:
    """Return some rows of a file, as pylance reads them."""
    return LanceFileReader(str(path)).take_rows(list(offsets)).to_table()


def unsliced(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in arrays that start at their buffers' start.

    pylance does not write all slices rightly, nor does Arrow take from all of them.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return list(pa.ipc.open_stream(sink.getvalue()))
