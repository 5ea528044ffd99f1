"""The files of one table, opened on first use and cached.

A data file's footer and metadata are read once: an LRU cache contains the readers. No cache is
pickled: a worker opens the files that it needs.

The process caches the offsets of deleted rows, not the open table, because a stream opens its table
for each batch. Each batch needs the offsets of nearly all fragments, most of which the previous
batch has written. A deletion file is identified by its name, which contains a random number.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ReadRanges, answer
from lance_stream.caches import Cache
from lance_stream.commit.manifest_stores.choice import location_of_files
from lance_stream.errors import BadDataError, CorruptDataError, InvalidInputError
from lance_stream.file.metadata.stored_pages import StoredPage
from lance_stream.file.reader import FileReader, open_file
from lance_stream.file.v0_1.statistics import PageBounds
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field
from lance_stream.snapshot.files.hidden_columns import HiddenColumn
from lance_stream.storage.locations import as_absolute
from lance_stream.storage.store import Store
from lance_stream.storage.trust import check_raw_file, open_named
from lance_stream.table.fragments.deletion_vectors import decode_deletion_vector
from lance_stream.table.fragments.fragment import (
    DataFile,
    DeletionFile,
    ExternalFile,
    Fragment,
    LineageColumn,
    StoredSequence,
)
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, decode_row_versions
from lance_stream.table.manifest import BasePath
from lance_stream.table.paths import data_file_path, deletion_file_path

MAX_OPEN_FILES: Final = 256
MAX_CACHED_SIZES: Final = 1 << 14

MAX_DELETED_OFFSETS_BYTES: Final = 64 << 20
"""The maximum size of the cached offsets of deleted rows of all tables."""

_DELETION_FILE_BYTES: Final = 256

MAX_UNCHECKED_ROWS: Final = 1 << 22
"""Up to this many stated rows of a fragment need so little memory that they are not checked."""


class OpenFiles:
    """Reads data files, deletion files and stored sequences of one table.

    Args:
        store: The table's store.
        base_paths: The locations outside of the table that its manifest declares. Relative paths,
            which the reference writes for a table that was opened by a relative path, are resolved
            against the working directory of the process that creates this object, and remain
            absolute on workers.
        storage_options: The reader's settings of the table's store; `storage.trust` decides which
            of them apply to the store of a base path.
    """

    def __init__(
        self,
        store: Store,
        base_paths: Sequence[BasePath] = (),
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self.base_paths = tuple(map(_absolute, base_paths))
        self.storage_options = dict(storage_options or {})
        self._readers: Cache[tuple[str, int | None], FileReader] = Cache(MAX_OPEN_FILES)
        self._sizes: Cache[tuple[str, str], int] = Cache(MAX_CACHED_SIZES)
        self._stores: Cache[int, Store] = Cache(MAX_OPEN_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self.store, self.base_paths, self.storage_options)

    def reader(self, file: DataFile) -> FileReader:
        """Return the reader of a data file; opening a small file takes one round of requests.

        Raises:
            BadDataError: The file is damaged, or unsupported.
            NotFoundError: The file does not exist.
        """
        return self._readers.get_or_make((file.path, file.base_id), lambda: self._open(file))

    def read(
        self,
        file: DataFile,
        fields: Sequence[Field],
        start: int,
        stop: int,
        read_ranges: ReadRanges | None = None,
    ) -> list[pa.Array]:
        """Return the rows [start, stop) of columns of a data file.

        Args:
            file: The file.
            fields: The columns.
            start: First row.
            stop: One past the last.
            read_ranges: Reads bytes of the file; None for `ranges_of`.
        """
        requests = self.reader(file).read(fields, file.column_of(), start, stop)
        return answer(requests, read_ranges or self.ranges_of(file))

    def take(
        self,
        file: DataFile,
        fields: Sequence[Field],
        offsets: npt.NDArray[np.uint64],
        read_ranges: ReadRanges | None = None,
    ) -> list[pa.Array]:
        """Return the rows at ascending offsets of columns of a data file."""
        requests = self.reader(file).take(fields, file.column_of(), offsets)
        return answer(requests, read_ranges or self.ranges_of(file))

    def stored_pages(self, file: DataFile, fields: Sequence[Field]) -> list[list[StoredPage]]:
        """Return the locations of the pages of columns; see `FileReader.stored_pages`."""
        requests = self.reader(file).stored_pages(fields, file.column_of())
        return answer(requests, self.ranges_of(file))

    def page_starts(self, file: DataFile, fields: Sequence[Field]) -> npt.NDArray[np.int64]:
        """Return the page starts, as row offsets, of the column with the most pages."""
        requests = self.reader(file).page_starts(fields, file.column_of())
        return answer(requests, self.ranges_of(file))

    def page_bounds(self, file: DataFile, fields: Sequence[Field]) -> PageBounds | None:
        """Return the bounds of the values of leaf fields per page; None if they are unknown.

        A file states them by field id. If two files had the same field id, the reference assigns a
        new one in the manifest, and the bounds are unknown.
        """
        stored = [field for field in fields if field.id in file.field_ids]
        reader = self.reader(file)
        field_ids = {field.id for field in reader.metadata.schema.walk()}
        if not field_ids.issuperset(field_id for field_id in file.field_ids if field_id >= 0):
            return None
        return answer(reader.page_bounds(stored), self.ranges_of(file))

    def num_rows(self, file: DataFile) -> int:
        """Return the number of rows that a data file states."""
        return self.reader(file).metadata.num_rows

    def check_num_rows(self, fragment: Fragment) -> None:
        """Check that the data files have as many rows as the manifest states for a fragment.

        This is for callers that allocate memory by the manifest's number before reading rows.

        Raises:
            CorruptDataError: The numbers differ: the manifest is damaged, or malicious.
        """
        for file in fragment.files[:1]:
            num_rows = self.num_rows(file)
            if fragment.physical_rows not in (0, num_rows):
                raise CorruptDataError(
                    f"the data file {file.path!r} has {num_rows} rows, but fragment {fragment.id} "
                    f"should have {fragment.physical_rows}"
                )
        if not fragment.files and fragment.physical_rows:
            raise CorruptDataError(
                f"fragment {fragment.id} should have {fragment.physical_rows} rows, but has no "
                "data file"
            )

    def deleted_offsets(self, fragment: Fragment, num_rows: int) -> npt.NDArray[np.uint32]:
        """Return the row offsets of a fragment's deleted rows, ascending.

        Raises:
            BadDataError: The deletion file is damaged, or contradicts the manifest.
            NotFoundError: The deletion file does not exist.
        """
        file = fragment.deletion_file
        if file is None:
            return np.empty(0, np.uint32)
        if num_rows > MAX_UNCHECKED_ROWS:
            self.check_num_rows(fragment)
        store, _ = self._store_of(file.base_id)
        path = deletion_file_path(fragment.id, file)

        def load() -> npt.NDArray[np.uint32]:
            try:
                return decode_deletion_vector(
                    store.read(path), file.file_type, num_rows, file.num_deleted_rows
                )
            except BadDataError as error:
                error.add_note(f"deletion file {path!r}")
                raise

        key = _DeletionFileKey(store.uri, path, num_rows, file.num_deleted_rows)
        return _DELETED_OFFSETS.get_or_make(key, load)

    def cache_deleted_offsets(
        self, fragment: Fragment, file: DeletionFile, deleted: npt.NDArray[np.uint32]
    ) -> None:
        """Cache the offsets of a deletion file that was just written, for the next batch.

        Args:
            fragment: The fragment, which states its number of rows.
            file: The new deletion file.
            deleted: The row offsets, ascending.
        """
        store, _ = self._store_of(file.base_id)
        path = deletion_file_path(fragment.id, file)
        key = _DeletionFileKey(store.uri, path, fragment.physical_rows, file.num_deleted_rows)
        _DELETED_OFFSETS.put(key, deleted)

    def sequence(self, stored: StoredSequence) -> bytes | HiddenColumn:
        """Return the bytes of a row id or row version sequence, or its hidden column.

        Raises:
            CorruptDataError: The bytes are past the end of a file.
        """
        if isinstance(stored, LineageColumn):
            return self.hidden_column(stored)
        if isinstance(stored, ExternalFile):
            from lance_stream.commit.repairs import read_external  # few writers use it

            return read_external(self.store, stored)
        return stored

    def hidden_column(self, stored: LineageColumn) -> HiddenColumn:
        """Return a hidden column, whose values are read on demand."""
        return HiddenColumn(
            stored,
            self.num_rows,
            lambda file, field, start, stop: self.read(file, [field], start, stop)[0],
            lambda file, field, offsets: self.take(file, [field], offsets)[0],
            lambda file: (*self._cache_key(file), file.size_bytes, file.column_indices),
        )

    def row_ids(self, stored: StoredSequence, num_rows: int) -> RowIdSequence:
        """Return the row ids of a fragment.

        Raises:
            CorruptDataError: The row ids are damaged, or not one for each row.
        """
        sequence = self.sequence(stored)
        if isinstance(sequence, bytes):
            return decode_row_ids(sequence, num_rows)
        return RowIdSequence.from_array(sequence.check_num_rows(num_rows).to_array())

    def row_versions(self, stored: StoredSequence | None, num_rows: int) -> RowVersionSequence:
        """Return the created-at or last-updated-at versions of a fragment.

        Raises:
            CorruptDataError: The versions are damaged, or not one for each row.
        """
        sequence = None if stored is None else self.sequence(stored)
        if isinstance(sequence, HiddenColumn):
            return RowVersionSequence.from_array(sequence.check_num_rows(num_rows).to_array())
        return decode_row_versions(sequence, num_rows)

    def size_of(self, file: DataFile) -> int:
        """Return the size of a data file in its store."""
        store, base = self._store_of(file.base_id)
        return store.size(data_file_path(file.path, base))

    def location_of(self, file: DataFile) -> tuple[Store, str]:
        """Return the store and path of a data file."""
        store, base = self._store_of(file.base_id)
        return store, data_file_path(file.path, base)

    def _cache_key(self, file: DataFile) -> tuple[str, str]:
        store, path = self.location_of(file)
        return store.uri, path

    def store_of_base(self, base_id: int) -> Store:
        """Return the store of a base path that the manifest declares."""
        return self._store_of(base_id)[0]

    def store_of(self, location: str) -> Store:
        """Return the store of a location that a row names; see `storage.trust.open_named`."""
        return open_named(self.store, location, self.storage_options)

    def check_raw_file(self, store: Store, path: str) -> None:
        """Check that a file's bytes may be used as a value; see `storage.trust.check_raw_file`."""
        check_raw_file(self.store, store, path, self.storage_options)

    def raw_file_size(self, store: Store, path: str) -> int:
        """Return the size of a file that is not a data file, with one request at most.

        Raises:
            NotFoundError: The file does not exist.
        """
        return self._sizes.get_or_make((store.uri, path), lambda: store.size(path))

    def _open(self, file: DataFile) -> FileReader:
        try:
            max_whole_size = self._store_of(file.base_id)[0].bytes_per_request
            requests = open_file(self._size_bytes_of(file), max_whole_size)
            return answer(requests, self.ranges_of(file))
        except BadDataError as error:
            error.add_note(f"data file {file.path!r}")
            raise

    def _size_bytes_of(self, file: DataFile) -> int:
        """Return the size of a file; for file version 0.1, the manifest's size may be wrong."""
        is_first = file.file_version <= FileVersion.V0_1.data_file_numbers
        return self.size_of(file) if is_first or not file.size_bytes else file.size_bytes

    def ranges_of(self, file: DataFile) -> ReadRanges:
        """Return a function that reads ranges of a data file."""
        store, base = self._store_of(file.base_id)
        path = data_file_path(file.path, base)
        return lambda ranges: store.read_ranges(path, ranges)

    def _store_of(self, base_id: int | None) -> tuple[Store, BasePath | None]:
        if base_id is None:
            return self.store, None
        for base in self.base_paths:
            if base.id == base_id:
                if not base.path:
                    raise CorruptDataError(f"base path {base_id} of the manifest is empty")
                return self._stores.get_or_make(base_id, partial(self._open_base, base)), base
        raise CorruptDataError(
            f"a file refers to base path {base_id}, but the manifest declares only "
            f"{[base_path.id for base_path in self.base_paths]}"
        )

    def _open_base(self, base: BasePath) -> Store:
        try:
            return open_named(self.store, location_of_files(base.path), self.storage_options)
        except BadDataError as error:
            error.add_note(f"base path {base.id}")
            raise
        except InvalidInputError as error:
            raise CorruptDataError(f"base path {base.id} is not a location: {error}") from error


class _DeletionFileKey(NamedTuple):
    """A deletion file, and the numbers with which its offsets were compared."""

    store: str
    path: str
    num_rows: int
    num_deleted_rows: int


_DELETED_OFFSETS: Final = Cache[_DeletionFileKey, npt.NDArray[np.uint32]](
    MAX_DELETED_OFFSETS_BYTES, lambda deleted: deleted.nbytes + _DELETION_FILE_BYTES
)


def clear_deleted_offsets() -> None:
    """Empty the cache of deleted offsets."""
    _DELETED_OFFSETS.clear()


def _absolute(base: BasePath) -> BasePath:
    with suppress(InvalidInputError):  # opening it raises the error
        return replace(base, path=as_absolute(base.path))
    return base
