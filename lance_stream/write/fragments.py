"""The workers' part of a write: writes Arrow batches to data files, and returns fragments.

No version references the files until a commit adds the fragments to the table (`append`,
`overwrite`). A file is either complete or absent. If writing fails, the files that were finished
before are deleted, together with their side files of blobs (`blob_files`).

A fragment has the id 0, and no row ids or row versions, until it is committed: the commit assigns
them. Workers send fragments to the driver as bytes (`table.fragments.fragment.encode_fragment`).
"""

import operator
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.file.encoding_options import with_supported_options
from lance_stream.file.type_support import holds_only_nulls
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import FileWriter as StoreFileWriter
from lance_stream.storage.store import Store
from lance_stream.table.apply import check_may_write
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.paths import blob_folder, data_file_name, data_file_path
from lance_stream.write.blob_files import BlobFiles
from lance_stream.write.casting import cast_batch, check_castable
from lance_stream.write.uploads import Uploads

MAX_ROWS_PER_FILE: Final = 1 << 20
MAX_BYTES_PER_FILE: Final = 4 << 30


@dataclass(frozen=True)
class WriteTarget:
    """Where and how new data files are written; picklable, created on the driver.

    Attributes:
        store: The table's store.
        schema: The table's columns, with field ids.
        file_version: The version of the table's data files.
        max_rows_per_file: A file is closed when it has this many rows.
        max_bytes_per_file: A file is closed when it has about this size.
        dictionaries: The table's dictionaries, by field id; only for file version 0.1.
    """

    store: Store
    schema: Schema
    file_version: FileVersion
    max_rows_per_file: int = MAX_ROWS_PER_FILE
    max_bytes_per_file: int = MAX_BYTES_PER_FILE
    dictionaries: Mapping[int, pa.Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_rows_per_file", "max_bytes_per_file"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {getattr(self, name)}")
        check_dictionaries(self.schema, self.file_version, self.dictionaries)


def check_dictionaries(
    schema: Schema, version: FileVersion, dictionaries: Mapping[int, pa.Array]
) -> None:
    """Raise if a table of version 0.1 has a dictionary column without values.

    Raises:
        InvalidInputError: There is such a column.
    """
    if version is not FileVersion.V0_1:
        return
    for column in schema.walk():
        if column.logical_type.startswith("dict:") and column.id not in dictionaries:
            raise InvalidInputError(
                f"the column {column.name!r} has a dictionary, whose values a table of version 0.1 "
                "stores when it is created, before it has rows; use plain values or version 2.0"
            )


def write_target(table: TableVersion) -> WriteTarget:
    """Return where and how new data files of a table are written.

    Raises:
        InvalidInputError: The table's versions are published elsewhere.
        UnsupportedFeatureError: The table uses a feature that this library cannot write.
        CorruptDataError: New rows would get row ids that are already in use.
    """
    table.log.check_may_follow(table.manifest)
    check_may_write(table.manifest)
    return WriteTarget(
        table.store,
        table.schema,
        table.file_version,
        dictionaries=table.manifest.dictionaries,
    )


def write_fragments(
    batches: Iterable[pa.RecordBatch], target: WriteTarget, uploads: Uploads | None = None
) -> list[Fragment]:
    """Write the rows of batches into new data files.

    Args:
        batches: Rows, whose columns are matched by name and cast (see `casting`). A schema that
            does not fit is rejected before a file is created.
        target: Where and how to write them.
        uploads: Closes the files in the background; None to close them before this returns.

    Returns:
        One fragment per file, in row order; none without rows.

    Raises:
        InvalidInputError: A column or value does not fit the table. No file is left behind.
    """
    written: list[Fragment] = []
    try:
        for rows in _files_of(_cast(batches, target), target):
            written.append(_write_file(rows, target, uploads))
    except BaseException:
        if uploads is not None:
            uploads.wait_for_all()
        delete_files(target.store, written)
        raise
    return written


def delete_files(store: Store, fragments: Iterable[Fragment]) -> None:
    """Delete the files of fragments that certainly no version references; best effort."""
    for fragment in fragments:
        for file in fragment.files:
            with suppress(OSError, LanceStreamError):
                store.delete(data_file_path(file.path))
                folder = blob_folder(data_file_path(file.path))
                for name in store.list_names(folder):
                    store.delete(f"{folder}/{name}")


def _cast(batches: Iterable[pa.RecordBatch], target: WriteTarget) -> Iterator[pa.RecordBatch]:
    table = to_arrow(target.schema)
    schema_of_target: pa.Schema | None = None
    for batch in batches:
        if schema_of_target is None or not batch.schema.equals(schema_of_target):
            check_castable(batch.schema, table)
            schema_of_target = batch.schema
        if batch.num_rows:
            yield cast_batch(batch, table)


class _Rows:
    """The batches of one file, as many as fit. The consumer updates `size_bytes`.

    Attributes:
        without: The columns that are null in all rows, and that the file omits.
    """

    def __init__(self, batches: "_BatchQueue", target: WriteTarget) -> None:
        self._batches = batches
        self._target = target
        self.without = _omitted_columns(batches.peek(), target)
        self.size_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        num_rows = 0
        while num_rows < self._target.max_rows_per_file:
            if self.size_bytes >= self._target.max_bytes_per_file:
                return
            if _omitted_columns(self._batches.peek(), self._target) != self.without:
                return
            batch = self._batches.take(self._target.max_rows_per_file - num_rows)
            if batch is None:
                return
            num_rows += batch.num_rows
            yield batch.drop_columns(list(self.without)) if self.without else batch


def _omitted_columns(batch: pa.RecordBatch | None, target: WriteTarget) -> frozenset[str]:
    """Return the columns of a batch that a file must omit; see `holds_only_nulls`.

    A file cannot omit all columns: then none is omitted, and the writer rejects the nulls.
    """
    if batch is None:
        return frozenset()
    missing = frozenset(
        field.name
        for field, column in zip(target.schema.fields, batch.columns, strict=True)
        if not holds_only_nulls(field, target.file_version) and column.null_count == batch.num_rows
    )
    return missing if len(missing) < batch.num_columns else frozenset()


class _BatchQueue:
    """Batches from which rows can be taken, up to a number."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, max_rows: int) -> pa.RecordBatch | None:
        batch = self.peek()
        self._rest = None
        if batch is not None and batch.num_rows > max_rows:
            self._rest = batch.slice(max_rows)
            batch = batch.slice(0, max_rows)
        return batch

    def peek(self) -> pa.RecordBatch | None:
        if self._rest is None:
            self._rest = next(self._batches, None)
        return self._rest


def _files_of(batches: Iterator[pa.RecordBatch], target: WriteTarget) -> Iterator[_Rows]:
    queue = _BatchQueue(batches)
    while queue.peek() is not None:
        yield _Rows(queue, target)


def _closing(file: StoreFileWriter, uploads: Uploads | None) -> AbstractContextManager[Any]:
    return file if uploads is None else uploads.closing(file)


def _file_schema(schema: Schema, without: frozenset[str]) -> Schema:
    """Return the schema of a file; the same object as the table's if they are equal."""
    stored = [field for field in schema.fields if field.name not in without]
    fields = tuple(map(with_supported_options, stored))
    same = len(fields) == len(schema.fields) and all(map(operator.is_, fields, schema.fields))
    return schema if same else replace(schema, fields=fields)


def _write_file(rows: _Rows, target: WriteTarget, uploads: Uploads | None) -> Fragment:
    name = data_file_name(secrets.token_bytes(16))
    schema = _file_schema(target.schema, rows.without)
    writer = FileWriter(schema, target.file_version, dictionaries=target.dictionaries)
    path = data_file_path(name)
    with (
        BlobFiles(target.store, path, target.schema) as blobs,
        _closing(target.store.open_writer(path), uploads) as file,
    ):
        size_bytes = 0
        for batch in rows:
            for buffer in writer.write(blobs.prepare(batch)):
                file.write(buffer)
                size_bytes += buffer.nbytes
            rows.size_bytes = size_bytes + blobs.size_bytes
        buffers, written = writer.finish()
        for buffer in buffers:
            file.write(buffer)
        blobs.close()
    data_file = DataFile(
        path=name,
        field_ids=written.field_ids,
        column_indices=written.column_indices,
        file_version=written.version.data_file_numbers,
        size_bytes=written.size_bytes,
    )
    return Fragment(id=0, files=(data_file,), physical_rows=written.num_rows)
