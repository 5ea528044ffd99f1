"""The cache of key bounds in this process, and the file that saves them.

    _lance_stream/key_bounds/{field id}.arrow

    Arrow IPC stream       file: 16 bytes · column: i32 · low, high: binary, null if no value
                           metadata: the kind of file, and the column's type
    32 bytes               BLAKE2b of everything before

The file is a cache. A process reads it once, and replaces it when collecting the missing bounds
again would take a while. The file may be deleted at any time. A file that is damaged, or belongs to
another column or format release, is ignored; errors of the store are logged.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lance_stream.arrow_streams import encode_batches
from lance_stream.caches import Cache
from lance_stream.errors import CorruptDataError, NotFoundError
from lance_stream.keys.bounds.key_bounds import (
    ColumnBounds,
    FileBounds,
    KeyBounds,
)
from lance_stream.keys.bounds.ordered_values import width_of
from lance_stream.keys.file_columns import FileColumn
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import FragmentList
from lance_stream.table.messages.arrow_messages import read_only_batch
from lance_stream.table.paths import key_bounds_path

_log = logging.getLogger(__name__)

MAX_COLUMNS: Final = 64
"""The maximum number of key columns, of all tables, in the cache."""

MAX_FILE_BYTES: Final = 64 << 20
MAX_FILE_ENTRIES: Final = 1 << 18

MIN_UNSAVED_WORK: Final = 1 << 20
"""The file is rewritten when `unsaved_work` exceeds this and an eighth of `saved_work`."""

_DIGEST_BYTES: Final = 32
_IS: Final = b"lance_stream.key_bounds"
_RELEASE: Final = b"1"
_TYPE: Final = b"type"
_SCHEMA: Final = pa.schema(
    [
        pa.field("file", pa.binary(16), nullable=False),
        pa.field("column", pa.int32(), nullable=False),
        pa.field("low", pa.binary()),
        pa.field("high", pa.binary()),
    ]
)

_columns: Final[Cache[tuple[str, int, str], ColumnBounds]] = Cache(MAX_COLUMNS)


def key_bounds(table: TableVersion, on: Sequence[str]) -> KeyBounds:
    """Return the known bounds of a table's key columns; reads the saved bounds once.

    Args:
        table: Any version.
        on: Names of its key columns.
    """
    return KeyBounds(
        [_column_bounds(table.store, field) for field in table.schema.fields_named(on)]
    )


def _column_bounds(store: Store, field: Field) -> ColumnBounds | None:
    arrow_type = field_to_arrow(field).type
    if width_of(arrow_type) is None:
        return None
    key = (store.uri, field.id, str(arrow_type))
    return _columns.get_or_make(key, lambda: _saved_bounds(store, field))


def _saved_bounds(store: Store, field: Field) -> ColumnBounds:
    bounds = ColumnBounds(field)
    bounds.add(read_bounds(store, field))
    bounds.note_saved()
    return bounds


def inherit_key_bounds(
    table: TableVersion, old: Sequence[Fragment], new: Sequence[Fragment]
) -> None:
    """Derive bounds of new files that contain only rows of old files.

    Args:
        table: The table.
        old: Fragments of the table.
        new: Fragments with the new files, already written.
    """
    for (uri, _, _), bounds in _columns.items():
        if uri == table.store.uri:
            bounds.inherit(old, new)


def save_key_bounds(table: TableVersion, bounds: KeyBounds) -> None:
    """Save the known bounds if collecting them again would take a while.

    Args:
        table: The version whose files' bounds are saved.
        bounds: The known bounds.
    """
    fragments = table.manifest.fragments
    for column in bounds.columns:
        column.forget_others(fragments)
        if column.unsaved_work > max(MIN_UNSAVED_WORK, column.saved_work // 8):
            write_bounds(table.store, column, fragments)


def write_bounds(store: Store, column: ColumnBounds, fragments: FragmentList) -> None:
    """Save the known bounds of the files of some fragments; best effort."""
    entries = column.files_of(fragments)[-MAX_FILE_ENTRIES:]
    table = pa.table(
        [
            pa.array([location.file for location, _, _ in entries], pa.binary(16)),
            pa.array([location.column for location, _, _ in entries], pa.int32()),
            pa.array([low if low <= high else None for _, low, high in entries], pa.binary()),
            pa.array([high if low <= high else None for _, low, high in entries], pa.binary()),
        ],
        schema=_SCHEMA.with_metadata(_metadata(column.field)),
    )
    data = encode_batches(table.schema, table.to_batches())
    column.note_saved()
    try:
        store.write(key_bounds_path(column.field.id), data + _digest(data))
    except Exception as error:  # from any store: the file is optional
        _log.warning(
            "cannot save the key bounds of %s; later processes search more files: %s",
            store.uri,
            error,
        )


def read_bounds(store: Store, field: Field) -> list[FileBounds]:
    """Return the saved bounds of a column; an empty list if there is no valid file."""
    path = key_bounds_path(field.id)
    try:
        end, size = store.read_end(path, MAX_FILE_BYTES)
    except NotFoundError:
        return []
    except Exception as error:  # from any store: the file is optional
        _log.warning(
            "cannot read the key bounds of %s; upserts search more files: %s", store.uri, error
        )
        return []
    data = bytes(end) if size <= MAX_FILE_BYTES else b""
    data, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if _digest(data) != digest:
        return []
    try:
        batch = read_only_batch(data, None, MAX_FILE_ENTRIES)
    except CorruptDataError:
        return []
    if not batch.schema.equals(_SCHEMA) or batch.schema.metadata != _metadata(field):
        return []
    return _bounds_in(batch, field)


def _bounds_in(batch: pa.RecordBatch, field: Field) -> list[FileBounds]:
    """Return the bounds in a batch; an empty list if any of them is invalid for the column."""
    files, columns, lows, highs = (column.to_pylist() for column in batch.columns)
    width = width_of(field_to_arrow(field).type)
    is_sound = not batch.column(0).null_count and not batch.column(1).null_count
    pairs = zip(lows, highs, strict=True)
    if not is_sound or not all(_are_bounds(low, high, width) for low, high in pairs):
        return []
    return [
        FileBounds(field.id, FileColumn(file, column), None if low is None else (low, high), 1, 1)
        for file, column, low, high in zip(files, columns, lows, highs, strict=True)
    ]


def _are_bounds(low: bytes | None, high: bytes | None, width: int | None) -> bool:
    if low is None or high is None:
        return low is high
    return max(len(low), len(high)) <= (width or 0) and low <= high


def _metadata(field: Field) -> dict[bytes, bytes]:
    return {_IS: _RELEASE, _TYPE: str(field_to_arrow(field).type).encode()}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
