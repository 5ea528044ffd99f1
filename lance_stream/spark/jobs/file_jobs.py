"""Lists and deletes the files of a table in Spark's tasks, for a cleanup.

What is deleted is decided on the driver, before the first file is. Every name is used once, so a
task that runs twice, or after its driver has died, deletes no file that a version needs.

A listing comes back compressed: some 20 bytes for a file. A store lists a folder from its first
name to its last, so each folder is one task.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_stream.arrow_streams import decode_batches, encode_batches
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.cleanup.file_work import FileWork, delete_locally
from lance_stream.spark.jobs.arrow_jobs import run_in_tasks
from lance_stream.storage.store import Store, StoredFile
from lance_stream.table.paths import VERSIONS_DIRECTORY

FILES_PER_TASK: Final = 2000
"""The number of files that a task deletes: work for a second or two."""

TASKS_AT_ONCE: Final = 32
"""How many tasks of one job delete: services limit the rate, and each task sends many requests."""

_FILES_IN_A_BATCH: Final = 1 << 16
_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("modified", pa.float64(), nullable=False),
    ]
)


T = TypeVar("T")


def by_tasks(spark: SparkSession) -> FileWork:
    """Return what lists and deletes files in a session's tasks."""
    return FileWork(partial(_list_folders, spark), partial(_delete, spark))


def _list_folders(
    spark: SparkSession, store: Store, folders: Sequence[str]
) -> Iterator[Iterable[StoredFile]]:
    yield from map(_files_in, run_in_tasks(spark, folders, partial(_list_folder, store)))


def _list_folder(store: Store, folder: str) -> bytes:
    """Return a listing in Arrow's stream format; runs on workers."""
    _check_is_seen(store)
    batches = (
        pa.record_batch(list(zip(*files, strict=True))[:3], schema=_SCHEMA)
        for files in _cut(store.list(folder), _FILES_IN_A_BATCH)
    )
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    return encode_batches(_SCHEMA, batches, options=options)


def _files_in(listing: bytes) -> Iterator[StoredFile]:
    for batch in decode_batches(listing):
        yield from map(StoredFile, *(column.to_pylist() for column in batch.columns))


def _delete(spark: SparkSession, store: Store, paths: Sequence[str]) -> None:
    for some in _cut(_cut(paths, FILES_PER_TASK), TASKS_AT_ONCE):
        run_in_tasks(spark, some, partial(_delete_some, store))


def _delete_some(store: Store, paths: Sequence[str]) -> None:
    """Delete files; runs on workers."""
    _check_is_seen(store)
    delete_locally(store, paths)


def _cut(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _check_is_seen(store: Store) -> None:
    """Check that a worker sees the table, which it does not if the path is on its local disk.

    Raises:
        InvalidInputError: It sees none.
    """
    if not store.list_names(VERSIONS_DIRECTORY, 1):
        raise InvalidInputError(
            f"a worker sees no table at {store.uri}, but the driver does: the path must be on a "
            "disk that all machines share, or in an object store"
        )
