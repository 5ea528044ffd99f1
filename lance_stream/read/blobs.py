"""Blobs as files: opened without loading them, read by range.

`take_blobs` reads the descriptions of some rows, and no byte of their blobs. The files that it
returns read just the requested bytes, with one request per read; `io.BufferedReader(blob)` saves
requests for many small reads.
"""

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.read.blob_locations import FileOfBlobs, blob_locations, read_range
from lance_stream.read.take import Numbers, addresses_of
from lance_stream.schema.blobs import described
from lance_stream.schema.fields import Field
from lance_stream.schema.projections import find, narrowed
from lance_stream.schema.types.logical_types import STRUCT
from lance_stream.table.lineage.row_addresses import unpack_addresses

if TYPE_CHECKING:
    from lance_stream.snapshot.table_version import TableVersion


class BlobFile(io.RawIOBase):
    """A blob as a readable, seekable file. Its bytes stay in the store until they are read.

    Attributes:
        size: Its number of bytes.
    """

    def __init__(self, file: FileOfBlobs | None, start: int, size: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._at = 0
        self.size = size

    def readable(self) -> bool:
        """Return True."""
        self._check_open()
        return True

    def seekable(self) -> bool:
        """Return True."""
        self._check_open()
        return True

    def tell(self) -> int:
        """Return the position of the next byte to read."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position relative to the start, the current one or the end, and return it.

        Raises:
            ValueError: The position is before the start, or the file is closed.
        """
        self._check_open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise ValueError(f"the position {at} is before the start of the blob")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as possible, with one request; return the number of bytes."""
        self._check_open()
        target = memoryview(buffer).cast("B")
        data = self._read(target.nbytes)
        target[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to a number of bytes, or all remaining ones, with one request.

        Raises:
            CorruptDataError: They do not exist.
        """
        self._check_open()
        return bytes(self._read(self.size if size is None or size < 0 else size))

    def readall(self) -> bytes:
        """Return all remaining bytes, with one request."""
        return self.read()

    def _read(self, size: int) -> memoryview:
        size = max(0, min(size, self.size - self._at))
        if size == 0 or self._file is None:
            return memoryview(b"")
        start = self._start + self._at
        data = read_range(self._file, start, start + size)
        self._at += size
        return data

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the blob is closed")


def take_blobs(
    table: "TableVersion",
    column: str,
    *,
    row_offsets: Numbers | None = None,
    row_ids: Numbers | None = None,
) -> list[BlobFile | None]:
    """Return the blobs of some rows, in the requested order; see `Dataset.take_blobs`."""
    path = _blob_path(table, column)
    addresses = addresses_of(table, row_offsets=row_offsets, row_ids=row_ids)
    distinct_addresses, inverse = np.unique(addresses, return_inverse=True)
    fragment_ids, offsets = unpack_addresses(distinct_addresses)
    locations: list[tuple[FileOfBlobs | None, int, int] | None] = []
    for fragment_id in np.unique(fragment_ids).tolist():
        low, high = np.searchsorted(fragment_ids, [fragment_id, fragment_id + 1])
        locations += _of_fragment(table, path, fragment_id, offsets[low:high].astype(np.uint64))
    return [_opened(locations[index]) for index in inverse.tolist()]


def _blob_path(table: "TableVersion", column: str) -> tuple[Field, ...]:
    """Return a blob column, after the structs around it, from the outermost on."""
    path = find(table.schema, column)
    if not path[-1].is_blob or any(step.logical_type != STRUCT for step in path[:-1]):
        blobs = list(_blob_names(table.schema.fields))
        raise InvalidInputError(
            f"the column {column!r} has no blobs; columns with blobs: {', '.join(blobs) or 'none'}"
        )
    return path


def _blob_names(fields: Sequence[Field], above: str = "") -> Iterator[str]:
    """Yield the paths of all blob columns that are not in lists."""
    for field in fields:
        if field.is_blob:
            yield above + field.name
        elif field.logical_type == STRUCT:
            yield from _blob_names(field.children, f"{above}{field.name}.")


def _of_fragment(
    table: "TableVersion", path: Sequence[Field], fragment_id: int, offsets: Any
) -> list[tuple[FileOfBlobs | None, int, int] | None]:
    field = path[-1]
    fragment = table.manifest.fragments.by_id(fragment_id)
    file = next(
        (file for file in (fragment.files if fragment else ()) if field.id in file.field_ids), None
    )
    if file is None:  # the column was added later
        return [None] * len(offsets)
    try:
        (descriptions,) = table.files.take(file, [described(narrowed(path))], offsets)
        for _ in path[1:]:
            descriptions = pc.struct_field(descriptions, 0)  # null where the struct is
        spans = blob_locations(descriptions, file, table.files)
    except BadDataError as error:
        error.add_note(f"column {field.name!r} of the data file {file.path!r}")
        raise
    return [
        (spans.files[which] if which >= 0 else None, start, size) if valid else None
        for valid, which, start, size in zip(
            spans.valid.tolist(),
            spans.file_of.tolist(),
            spans.positions.tolist(),
            spans.sizes.tolist(),
            strict=True,
        )
    ]


def _opened(location: tuple[FileOfBlobs | None, int, int] | None) -> BlobFile | None:
    if location is None:
        return None
    file, start, size = location
    return BlobFile(file, start, size)
