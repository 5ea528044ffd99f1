"""Locates blobs: from descriptions in a data file to bytes in stores.

    inline       bytes of the data file itself
    packed       bytes of a side file, data/{data file without .lance}/{32 digits}.blob
    dedicated    all bytes of a side file
    external     bytes of a file that a URI names, or a path below a base path of the table

Every description is compared with the size of the file before memory is allocated.
`storage.trust` decides which locations outside of the table may provide a blob's bytes.

Source: lance, dataset/blob; files that the reference wrote.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError, NotFoundError, UnsupportedFeatureError
from lance_stream.file.nested_arrays import holds_blobs, items_of
from lance_stream.schema.blobs import DEDICATED, EXTERNAL, INLINE, PACKED
from lance_stream.schema.fields import Field
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.storage.store import Store
from lance_stream.storage.trust import check_is_not_link
from lance_stream.table.fragments.fragment import DataFile
from lance_stream.table.paths import blob_file_path, check_stored_path

JOIN_BELOW: Final = 64 << 10
"""Two blobs of a file are read with one range if fewer bytes are between them."""

_MAX_POSITION: Final = 2**62
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class BlobSource(NamedTuple):
    """A file that contains blobs.

    Attributes:
        store: The store.
        path: The path in the store.
        size_bytes: The size of the file.
    """

    store: Store
    path: str
    size_bytes: int


class BlobSpans(NamedTuple):
    """The locations of blobs, one per row.

    Attributes:
        valid: (num_rows,) whether the blob is not null.
        files: The files that contain the blobs.
        file_indices: (num_rows,) i64, index into `files`; -1 for nulls and empty blobs.
        positions: (num_rows,) i64, offset of the blob's first byte in its file.
        sizes: (num_rows,) i64, number of bytes; 0 for nulls.
    """

    valid: npt.NDArray[np.bool_]
    files: list[BlobSource]
    file_indices: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def blob_locations(
    descriptions: pa.StructArray, file: DataFile, open_files: OpenFiles
) -> BlobSpans:
    """Return the locations of the blobs that a data file describes.

    Args:
        descriptions: Values of a blob column of the data file.
        file: The data file.
        open_files: The table's files.

    Raises:
        CorruptDataError: A description points outside its file, or the file does not exist.
        UnsupportedFeatureError: A blob is of an unsupported kind.
    """
    names = [field.name for field in descriptions.type]
    parts = {
        name: descriptions.field(index).fill_null("" if name == "blob_uri" else 0)
        for index, name in enumerate(names)
    }
    valid = descriptions.is_valid().to_numpy(zero_copy_only=False)
    positions, sizes = (_numbers(parts[name], valid) for name in ("position", "size"))
    count = len(descriptions)
    if "kind" not in names:
        kinds = ids = np.zeros(count, np.int64)
        uris: Any = np.full(count, "", object)
    else:
        kinds, ids = (_numbers(parts[name], valid) for name in ("kind", "blob_id"))
        uris = parts["blob_uri"].to_numpy(zero_copy_only=False)
    file_indices = np.full(count, -1, np.int64)
    files: list[BlobSource] = []
    # An empty blob has no bytes, but an external one of size 0 is its whole file.
    stored = np.flatnonzero(valid & ((sizes > 0) | (kinds == EXTERNAL)))
    keys: dict[tuple[int, int, str], int] = {}
    for row in _first_rows_of_files(kinds, ids, uris, stored):
        kind, number, uri = int(kinds[row]), int(ids[row]), str(uris[row])
        key = (kind, 0 if kind == INLINE else number, uri if kind == EXTERNAL else "")
        if key in keys:
            continue
        keys[key] = len(files)
        files.append(_open_source(key, file, open_files))
    if len(keys) == 1:
        file_indices[stored] = 0
    else:
        for row in stored.tolist():
            kind = int(kinds[row])
            key = (
                kind,
                0 if kind == INLINE else int(ids[row]),
                str(uris[row]) if kind == EXTERNAL else "",
            )
            file_indices[row] = keys[key]
    spans = BlobSpans(valid, files, file_indices, positions, sizes)
    _check(spans, kinds)
    return spans


def read_blobs(spans: BlobSpans) -> pa.Array:
    """Return the bytes of blobs as a large_binary array."""
    offsets = np.zeros(len(spans.valid) + 1, np.int64)
    np.cumsum(spans.sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    target = data.data
    for file_index, file in enumerate(spans.files):
        rows = np.flatnonzero((spans.file_indices == file_index) & (spans.sizes > 0))
        rows = rows[np.argsort(spans.positions[rows], kind="stable")]
        runs = list(_joined_ranges(spans.positions[rows], spans.sizes[rows]))
        buffers = _read(file, [run for run, _ in runs])
        position = 0
        for (run, num_rows), buffer in zip(runs, buffers, strict=True):
            inside = rows[position : position + num_rows]
            position += num_rows
            first, stop = int(offsets[inside[0]]), int(offsets[inside[-1] + 1])
            if stop - first == run.size_bytes == int(spans.sizes[inside].sum()) and bool(
                (inside[1:] > inside[:-1]).all()
            ):
                target[first:stop] = buffer  # blobs are adjacent, as our writer stores them
                continue
            for row in inside.tolist():
                start, size = int(spans.positions[row]) - run.start, int(spans.sizes[row])
                first = int(offsets[row])
                target[first : first + size] = buffer[start : start + size]
    missing = int(np.count_nonzero(~spans.valid))
    bitmap = pa.py_buffer(np.packbits(spans.valid, bitorder="little")) if missing else None
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(spans.valid),
        [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)],
        missing,
    )


def sizes_of_blobs(field: Field, array: pa.Array, max_bytes: int) -> npt.NDArray[np.uint64]:
    """Return the total size of the blobs of each row, at any depth.

    Args:
        field: The column, with descriptions.
        array: Its values.
        max_bytes: The upper limit for the size of a blob: a description may state any number.

    Returns:
        (num_rows,) u64, in bytes.
    """
    sizes: npt.NDArray[np.uint64] = np.zeros(len(array), np.uint64)
    if field.is_blob:
        index = array.type.get_field_index("size")
        stated = array.field(index).fill_null(0).to_numpy(zero_copy_only=False)
        sizes += np.minimum(stated, max_bytes).astype(np.uint64)
    elif pa.types.is_struct(array.type):
        for index, child in enumerate(field.children):
            sizes += sizes_of_blobs(child, array.field(index), max_bytes)
    elif holds_blobs(field):
        items = items_of(array)
        sums = np.append(
            np.uint64(0), np.cumsum(sizes_of_blobs(field.children[0], items, max_bytes))
        )
        if pa.types.is_fixed_size_list(array.type):
            offsets = np.arange(len(array) + 1) * array.type.list_size
        else:
            offsets = array.offsets.to_numpy() - array.offsets[0].as_py()
        sizes += np.diff(sums[offsets])
    return sizes


def read_range(file: BlobSource, start: int, stop: int) -> memoryview:
    """Return a range of bytes of a file, with one request.

    Raises:
        CorruptDataError: The file is truncated, or no longer exists.
    """
    (buffer,) = _read(file, [ByteRange(start, stop)])
    return buffer


def _read(file: BlobSource, ranges: list[ByteRange]) -> list[memoryview]:
    try:
        buffers = [memoryview(span).cast("B") for span in file.store.read_ranges(file.path, ranges)]
    except NotFoundError as error:
        raise _missing_file(file.path) from error
    for target, buffer in zip(ranges, buffers, strict=True):
        if buffer.nbytes != target.size_bytes:
            raise CorruptDataError(
                f"bytes {target.start} to {target.stop} of the blob file {file.path!r} were "
                f"requested, but only {buffer.nbytes} exist: the file is truncated"
            )
    return buffers


def _joined_ranges(
    positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Iterator[tuple[ByteRange, int]]:
    """Yield ranges that cover blobs at ascending positions, and the number of blobs in each."""
    if len(positions) == 0:
        return
    stops = np.maximum.accumulate(positions + sizes)
    heads = np.flatnonzero(np.append(True, positions[1:] - stops[:-1] > JOIN_BELOW))
    for head, end in zip(heads, [*heads[1:], len(positions)], strict=True):
        yield ByteRange(int(positions[head]), int(stops[end - 1])), int(end - head)


def _first_rows_of_files(kinds: Any, ids: Any, uris: Any, rows: npt.NDArray[np.int64]) -> list[int]:
    """Return the rows whose file differs from that of the previous row; they cover all files."""
    if len(rows) == 0:
        return []
    differs = (np.diff(kinds[rows]) != 0) | (np.diff(ids[rows]) != 0)
    differs |= uris[rows][1:] != uris[rows][:-1]
    first_rows: list[int] = rows[np.append(True, differs)].tolist()
    return first_rows


def _open_source(key: tuple[int, int, str], file: DataFile, open_files: OpenFiles) -> BlobSource:
    kind, number, uri = key
    store, path = open_files.location_of(file)
    if kind == INLINE:
        return BlobSource(store, path, open_files.reader(file).metadata.size_bytes)
    if kind in (PACKED, DEDICATED):
        path = blob_file_path(path, number)
        check_is_not_link(store, path)
    elif kind == EXTERNAL:
        store, path = _locate_external(number, uri, open_files)
    else:
        raise UnsupportedFeatureError(f"blobs of kind {kind} are not supported")
    try:
        return BlobSource(store, path, open_files.raw_file_size(store, path))
    except NotFoundError as error:
        raise _missing_file(path) from error


def _locate_external(base_id: int, uri: str, open_files: OpenFiles) -> tuple[Store, str]:
    if base_id:
        store, name = open_files.store_of_base(base_id), check_stored_path(uri)
    else:
        folder, slash, name = uri.rpartition("/")
        if not _URI.match(uri) or not slash or name in ("", ".", "..") or "\0" in name:
            raise CorruptDataError(f"an external blob has URI {uri[:200]!r}, which is not absolute")
        store = open_files.store_of(folder)
    open_files.check_raw_file(store, name)
    return store, name


def _check(spans: BlobSpans, kinds: npt.NDArray[np.int64]) -> None:
    """Set the sizes of whole external files, and raise unless all blobs are inside their files.

    Blobs of the table's own files must not have more bytes in total than their file.
    """
    for file_index, file in enumerate(spans.files):
        rows = np.flatnonzero(spans.file_indices == file_index)
        kind = int(kinds[rows[0]])
        if kind == EXTERNAL:
            whole = rows[spans.sizes[rows] == 0]
            spans.sizes[whole] = file.size_bytes - spans.positions[whole]
        stops = spans.positions[rows] + spans.sizes[rows]
        if (stops > file.size_bytes).any() or (spans.sizes[rows] < 0).any():
            raise CorruptDataError(
                f"a blob should end at byte {stops.max()} of {file.path!r}, which has only "
                f"{file.size_bytes} bytes"
            )
        if (
            kind == DEDICATED
            and ((spans.positions[rows] != 0) | (spans.sizes[rows] != file.size_bytes)).any()
        ):
            raise CorruptDataError(
                f"a blob of {spans.sizes[rows].max()} bytes should be all of {file.path!r}, "
                f"which has {file.size_bytes} bytes"
            )
        if kind != EXTERNAL and int(spans.sizes[rows].sum()) > file.size_bytes:
            raise CorruptDataError(
                f"blobs of {spans.sizes[rows].sum()} bytes in total should be in {file.path!r}, "
                f"which has only {file.size_bytes} bytes"
            )


def _numbers(array: pa.Array, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    numbers = np.where(valid, array.to_numpy(zero_copy_only=False), 0).astype(np.uint64)
    if len(numbers) and int(numbers.max()) > _MAX_POSITION:
        raise CorruptDataError(f"a blob has a position or size of {numbers.max()} bytes")
    return numbers.astype(np.int64)


def _missing_file(path: str) -> CorruptDataError:
    return CorruptDataError(f"the blob file {path!r} does not exist")
