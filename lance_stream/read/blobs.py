"""Blobs as files: opened without loading them, and read by range.

`take_blobs` reads the descriptions of rows, but no byte of their blobs. The files that it returns
read exactly the requested bytes, with one request per read; for many small reads,
`io.BufferedReader(blob)` saves requests.
"""

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.read.blob_locations import BlobSource, blob_locations, read_range
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
        size: The size of the blob in bytes.
    """

    def __init__(self, file: BlobSource | None, start: int, size: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._position = 0
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
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position relative to the start, the current position or the end; return it.

        Raises:
            ValueError: The position is before the start, or the file is closed.
        """
        self._check_open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        position = offset + origin
        if position < 0:
            raise ValueError(f"position {position} is before the start of the blob")
        self._position = position
        return position

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer as many bytes as fit, with one request; return their number."""
        self._check_open()
        target = memoryview(buffer).cast("B")
        data = self._read(target.nbytes)
        target[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes, or all remaining ones, with one request.

        Raises:
            CorruptDataError: The file is truncated, or no longer exists.
        """
        self._check_open()
        return bytes(self._read(self.size if size is None or size < 0 else size))

    def readall(self) -> bytes:
        """Return all remaining bytes, with one request."""
        return self.read()

    def _read(self, size: int) -> memoryview:
        size = max(0, min(size, self.size - self._position))
        if size == 0 or self._file is None:
            return memoryview(b"")
        start = self._start + self._position
        data = read_range(self._file, start, start + size)
        self._position += size
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
    """Return the blobs of rows, in the requested order; see `Dataset.take_blobs`."""
    path = _blob_path(table, column)
    addresses = addresses_of(table, row_offsets=row_offsets, row_ids=row_ids)
    distinct_addresses, inverse = np.unique(addresses, return_inverse=True)
    fragment_ids, offsets = unpack_addresses(distinct_addresses)
    locations: list[tuple[BlobSource | None, int, int] | None] = []
    for fragment_id in np.unique(fragment_ids).tolist():
        low, high = np.searchsorted(fragment_ids, [fragment_id, fragment_id + 1])
        locations += _blobs_of_fragment(
            table, path, fragment_id, offsets[low:high].astype(np.uint64)
        )
    return [_open(locations[index]) for index in inverse.tolist()]


def _blob_path(table: "TableVersion", column: str) -> tuple[Field, ...]:
    """Return the path to a blob column: the structs around it, outermost first, and the column."""
    path = find(table.schema, column)
    if not path[-1].is_blob or any(step.logical_type != STRUCT for step in path[:-1]):
        blobs = list(_blob_names(table.schema.fields))
        raise InvalidInputError(
            f"column {column!r} has no blobs; columns with blobs: {', '.join(blobs) or 'none'}"
        )
    return path


def _blob_names(fields: Sequence[Field], above: str = "") -> Iterator[str]:
    """Yield the paths of all blob columns that are not in lists."""
    for field in fields:
        if field.is_blob:
            yield above + field.name
        elif field.logical_type == STRUCT:
            yield from _blob_names(field.children, f"{above}{field.name}.")


def _blobs_of_fragment(
    table: "TableVersion", path: Sequence[Field], fragment_id: int, offsets: Any
) -> list[tuple[BlobSource | None, int, int] | None]:
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
            descriptions = pc.struct_field(descriptions, 0)  # null if the struct is null
        spans = blob_locations(descriptions, file, table.files)
    except BadDataError as error:
        error.add_note(f"column {field.name!r} of the data file {file.path!r}")
        raise
    return [
        (spans.files[file_index] if file_index >= 0 else None, start, size) if valid else None
        for valid, file_index, start, size in zip(
            spans.valid.tolist(),
            spans.file_indices.tolist(),
            spans.positions.tolist(),
            spans.sizes.tolist(),
            strict=True,
        )
    ]


def _open(location: tuple[BlobSource | None, int, int] | None) -> BlobFile | None:
    if location is None:
        return None
    file, start, size = location
    return BlobFile(file, start, size)
