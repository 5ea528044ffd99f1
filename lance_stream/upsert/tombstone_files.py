"""Tombstone files, which hold remembered deletes: their bytes, and a cache for key lookups.

A file is an Arrow file with one batch, its rows in no particular order:

    key:<name>     the key columns, in the table's types; dictionaries decoded
    sequence       the sequence of the deleting row
    deleted_at     i64, milliseconds since 1970-01-01 UTC

For a history of keys (`shadowed_events`), a file holds events, not only deletes, and has additional
columns:

    stores         bool, whether the event stored a row; otherwise it deleted
    value:<name>   the row's value in a column; null in deletes

Other columns have no nulls, and buffers are not compressed, so a file is not larger in memory than
on disk. Files are immutable: a process reads a file once and caches it with its sorted key hashes.
The cost of a lookup therefore depends on the size of the batch, not on the number of remembered
deletes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.arrow_streams import encode_batches
from lance_stream.caches import Cache
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.key_words import hash_keys
from lance_stream.keys.value_comparison import dense_ranks
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.storage.store import Store
from lance_stream.table.config.tombstones import CONFIG_KEY, FileContent, TombstoneFile
from lance_stream.table.messages.arrow_messages import read_only_batch
from lance_stream.table.paths import tombstone_path
from lance_stream.write.casting import cast_batch

SEQUENCE: Final = "sequence"
DELETED_AT: Final = "deleted_at"
STORES: Final = "stores"
VALUE_PREFIX: Final = "value:"
_KEY_PREFIX: Final = "key:"

_MIN_BYTES_OF_A_ROW: Final = 8
"""The size of a deletion time in bytes."""

MAX_CACHED_BYTES: Final = 256 << 20
"""The maximum size of the tombstones that a process caches."""

FORGET: Final = (
    "To forget the deletes, so that late rows may bring the keys back, remove the key "
    f"{CONFIG_KEY!r} from the table's config"
)
"""The remedy in errors about remembered deletes."""


@dataclass(frozen=True)
class Deletes:
    """Some remembered deletes, or shadowed events of a history.

    Attributes:
        rows: (n,) key columns, in the order of the requested schema; then the sequences; then the
            deletion times, i64 milliseconds since 1970-01-01 UTC; then, for events of a history,
            whether they stored a row, and the row's values.
        missing: By value column: (n,) whether the event's value was not remembered, because the
            column was tracked at that time or missing in the data. Columns without such events
            have no entry.
    """

    rows: pa.RecordBatch
    missing: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def keys(self) -> list[pa.Array]:
        """(n,) values of each key column."""
        return list(self.rows.columns[: self.rows.schema.get_field_index(SEQUENCE)])

    @property
    def sequence(self) -> pa.Array:
        """(n,) sequences."""
        return self.rows.column(SEQUENCE)

    @property
    def deleted_at_ms(self) -> Positions:
        """(n,) i64."""
        times: Positions = self.rows.column(DELETED_AT).to_numpy()
        return times

    @property
    def stores(self) -> npt.NDArray[np.bool_]:
        """(n,) whether each event of a history stored a row."""
        stores: npt.NDArray[np.bool_] = self.rows.column(STORES).to_numpy(zero_copy_only=False)
        return stores

    def last_per_sequence(self) -> "Deletes":
        """Return a history's events; of those with equal key, sequence and kind, only the last."""
        lookup = KeyLookup(self.keys)
        ranks = dense_ranks(self.sequence)
        order = np.lexsort((self.stores, ranks, lookup.key_of_row))  # stable
        same = np.zeros(len(order), np.bool_)
        same[:-1] = True
        for values in (lookup.key_of_row, ranks, self.stores):
            same[:-1] &= values[order[1:]] == values[order[:-1]]
        return Deletes(self.rows.take(pa.array(np.sort(order[~same]))))

    @cached_property
    def _by_hash(self) -> tuple[npt.NDArray[np.uint64], Positions]:
        """The hashes of all keys, ascending, and their rows."""
        hashes = hash_keys(self.keys)
        order = np.argsort(hashes)
        return hashes[order], order

    @property
    def size_bytes(self) -> int:
        """The memory that the rows and their hashes take, in bytes."""
        num_bytes: int = self.rows.nbytes + 16 * self.rows.num_rows
        return num_bytes

    def rows_that_may_be(self, hashes: npt.NDArray[np.uint64]) -> Positions:
        """Return the distinct rows whose key has one of the hashes.

        Args:
            hashes: (m,) u64, ascending.
        """
        ascending, order = self._by_hash
        # Search the larger array for the values of the smaller one.
        if len(ascending) <= len(hashes):
            return order[_are_in(ascending, hashes)]
        hits = hashes[_are_in(hashes, ascending)]
        starts = np.searchsorted(ascending, hits, "left")
        counts = np.searchsorted(ascending, hits, "right") - starts
        # Expand every (start, count) to the positions start, start + 1, ..., start + count - 1.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.unique(order[np.repeat(starts, counts) + within])


def plain_values(values: pa.Array) -> pa.Array:
    """Return values without a dictionary."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _are_in(
    values: npt.NDArray[np.uint64], ascending: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Return which values are in an array that has at least as many."""
    positions = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    is_member: npt.NDArray[np.bool_] = ascending[positions] == values
    return is_member


def encode_deletes(deletes: Deletes) -> bytes:
    """Return the bytes of a tombstone file."""
    return encode_batches(deletes.rows.schema, [deletes.rows], pa.ipc.new_file)


def decode_deletes(data: bytes, names: Sequence[str], num_rows: int) -> pa.RecordBatch:
    """Return the rows of a file, in the types of the file.

    Args:
        data: The whole file.
        names: The columns, as from `column_names`.
        num_rows: The expected number of rows.

    Raises:
        CorruptDataError: The file is damaged, or contains something else.
    """
    try:
        batch = read_only_batch(data, None, len(data) // _MIN_BYTES_OF_A_ROW)
    except CorruptDataError as error:
        raise CorruptDataError(f"a file of remembered deletes is damaged: {error}") from error
    values = [name for name in batch.schema.names if name.startswith(VALUE_PREFIX)]
    if STORES not in names:
        values = []
    required = [name for name in batch.schema.names if name not in values]
    if sorted(required) != sorted(names) or len(set(values)) != len(values):
        stored_names = ", ".join(map(repr, batch.schema.names))
        raise CorruptDataError(
            f"a file of remembered deletes has the columns {stored_names:.200}; "
            f"expected {', '.join(names)}"
        )
    strange = [
        str(field.type)
        for field in batch.schema
        if not _is_plain(field.type, may_be_nested=field.name in values)
    ]
    if strange:
        raise CorruptDataError(f"a file of remembered deletes has values of {strange[0]!r:.200}")
    if batch.num_rows != num_rows:
        raise CorruptDataError(
            f"a file of remembered deletes contains {batch.num_rows} rows, but the table's config "
            f"states {num_rows}"
        )
    if any(batch.column(name).null_count for name in required):
        raise CorruptDataError("a file of remembered deletes contains nulls")
    return batch


def _is_plain(arrow_type: pa.DataType, *, may_be_nested: bool = False) -> bool:
    """Return whether values take no more memory than bytes in a file.

    Views, run-end encoded arrays and dictionaries may: a few bytes can represent any number of
    values.
    """
    if pa.types.is_struct(arrow_type):
        return all(_is_plain(part.type, may_be_nested=may_be_nested) for part in arrow_type)
    if may_be_nested and (pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)):
        return _is_plain(arrow_type.value_type, may_be_nested=True)
    if may_be_nested and pa.types.is_fixed_size_list(arrow_type):
        return arrow_type.list_size > 0 and _is_plain(arrow_type.value_type, may_be_nested=True)
    if may_be_nested and pa.types.is_map(arrow_type):
        parts = (arrow_type.key_type, arrow_type.item_type)
        return all(_is_plain(part, may_be_nested=True) for part in parts)
    return pa.types.is_primitive(arrow_type) or any(kind(arrow_type) for kind in _PLAIN_KINDS)


_PLAIN_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_decimal,
)


def cast_deletes(rows: pa.RecordBatch, schema: pa.Schema) -> Deletes:
    """Return the rows of a file as deletes with the given column types.

    Args:
        rows: As from `decode_deletes`.
        schema: The columns and their types, as from `schema_of`.

    Raises:
        InvalidInputError: A column cannot be cast to its type.
    """
    names = [name for name in rows.schema.names if name in schema.names]  # others were dropped
    missing = {
        name: np.ones(rows.num_rows, np.bool_)
        for name in schema.names
        if name not in names  # value columns: a file has all others
    }
    try:
        return Deletes(cast_batch(rows.select(names), schema), missing)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the table remembers deletes with other types of keys or sequences than this "
            f"upsert has: {error}. {FORGET}"
        ) from error


def column_names(on: Sequence[str], *, is_history: bool) -> list[str]:
    """Return the required columns of a file of deletes, or of events, given the key columns."""
    extra = [STORES] if is_history else []
    return [*(_KEY_PREFIX + name for name in on), SEQUENCE, DELETED_AT, *extra]


def schema_of(
    on: Sequence[str],
    table: pa.Schema,
    sequence: pa.DataType,
    values: Sequence[str] | None = None,
) -> pa.Schema:
    """Return the columns of remembered deletes, or of events, with their types.

    Args:
        on: The key columns.
        table: The table's columns.
        sequence: The type of the sequences.
        values: The columns whose values are remembered with the events of a history; None for
            deletes.
    """
    types = [*(plain_type(table.field(name).type) for name in on), plain_type(sequence), pa.int64()]
    if values is not None:
        types.append(pa.bool_())
    pairs = zip(column_names(on, is_history=values is not None), types, strict=True)
    fields = [pa.field(name, kind, nullable=False) for name, kind in pairs]
    fields += [
        pa.field(VALUE_PREFIX + value, plain_type(table.field(value).type))
        for value in values or ()
    ]
    return pa.schema(fields)


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type without a dictionary."""
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


class DeleteFileCache:
    """An LRU cache of tombstone files by location and columns."""

    def __init__(self, max_bytes: int) -> None:
        self._files: Cache[tuple[str, str, str], Deletes] = Cache(
            max_bytes, lambda deletes: deletes.size_bytes
        )

    def get(self, files: OpenFiles, file: TombstoneFile, schema: pa.Schema) -> Deletes:
        """Return the deletes of a file, with columns as from `schema_of`.

        Raises:
            CorruptDataError: The file is damaged or missing.
            InvalidInputError: The file's values cannot be cast to the schema.
        """
        key = files.store.uri, file.name, str(schema)
        # The value columns of a file are those that were remembered when it was written.
        names = [name for name in schema.names if not name.startswith(VALUE_PREFIX)]
        return self._files.get_or_make(
            key, lambda: cast_deletes(read_deletes(files, file, names), schema)
        )

    def forget(self) -> None:
        """Clear the cache, as if the process had just started."""
        self._files.clear()

    def add(self, files: OpenFiles, file: TombstoneFile, deletes: Deletes) -> None:
        """Cache the deletes of a file."""
        key = files.store.uri, file.name, str(deletes.rows.schema)
        self._files.get_or_make(key, lambda: deletes)


DELETE_FILES: Final = DeleteFileCache(MAX_CACHED_BYTES)
"""The files that this process has cached."""


def read_deletes(files: OpenFiles, file: TombstoneFile, names: Sequence[str]) -> pa.RecordBatch:
    """Read a file; return its rows in the types of the file.

    Args:
        files: The location of the table.
        file: The file.
        names: The columns, as from `column_names`.

    Raises:
        CorruptDataError: The file is damaged or missing, or contains something else.
    """
    path = tombstone_path(file.name)
    try:
        return decode_deletes(read_bytes(files, file), names, file.num_rows)
    except CorruptDataError as error:
        error.add_note(f"file {path!r} of {files.store.uri}")
        if FORGET not in str(error):
            error.add_note(FORGET)
        raise


def read_bytes(files: OpenFiles, file: TombstoneFile) -> bytes:
    """Return the bytes of a file of the table, or of a table that it was cloned from.

    Branches and clones that pylance creates have no copy of the file.

    Raises:
        CorruptDataError: The file is missing, or is not as the config describes it.
    """
    with suppress(NotFoundError):
        return _stated_bytes(files.store, file)
    for base in files.base_paths:
        if base.is_dataset_root:
            with suppress(NotFoundError):
                return _stated_bytes(files.store_of_base(base.id), file)
    raise CorruptDataError(f"a file of remembered deletes is missing: restore the file. {FORGET}")


def _stated_bytes(store: Store, file: TombstoneFile) -> bytes:
    """Return the bytes of a file, checked against the size and content that the config states.

    If the file is larger than stated, only the stated number of bytes is read.
    """
    path, stated = tombstone_path(file.name), file.content
    if stated is None:
        return store.read(path)
    end, size = store.read_end(path, stated.num_bytes)
    data = bytes(end)
    if size != stated.num_bytes or FileContent.of(data) != stated:
        raise CorruptDataError(
            f"a file of remembered deletes has been replaced or damaged: it has {size} bytes, but "
            f"the table's config describes a file of {stated.num_bytes} bytes with other content. "
            f"Restore that file. {FORGET}"
        )
    return data
