"""Tables without data: their manifests name files that are never read; and a fixed environment."""

import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.commit.committer import CommittedTransaction, NothingToCommit, commit
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.rebasing import write_deletion_file
from lance_stream.environment import Environment
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import Schema, assign_ids
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from lance_stream.table.apply import Creation
from lance_stream.table.fragments.deletion_vectors import decode_deletion_vector
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.manifest import DataFormat, Manifest, WriterVersion, encode_manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Delete, Overwrite
from lance_stream.table.operations.transaction import Transaction, encode_transaction
from lance_stream.table.paths import deletion_file_path

SCHEMA = assign_ids(from_arrow(pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.string())])))
CREATION = Creation(DataFormat("lance", "2.2"))
START_NANOS = 1_700_000_000_000_000_000

_numbers = itertools.count(1)


def make_environment(**overrides: Any) -> Environment:
    """A clock that advances a second per reading, waits that take no time, and counting dice."""
    seconds = itertools.count(1)
    defaults: dict[str, Any] = {
        "now_nanos": lambda: START_NANOS + next(seconds) * 1_000_000_000,
        "sleep": lambda _seconds: None,
        "chance": lambda: 0.5,
        "random_id": lambda: next(_numbers),
    }
    return Environment(**{**defaults, **overrides})


def make_store() -> Store:
    return open_store(f"memory://{uuid.uuid4()}/table")


def new_fragment(num_rows: int, schema: Schema = SCHEMA) -> Fragment:
    field_ids = tuple(field.id for field in schema.walk())
    file = DataFile(
        f"part-{next(_numbers)}.lance", field_ids, tuple(range(len(field_ids))), (2, 2), 1000
    )
    return Fragment(0, (file,), num_rows)


def transaction(
    read_version: int, operation: Operation, properties: Mapping[str, str] | None = None
) -> Transaction:
    return Transaction(read_version, str(uuid.uuid4()), operation, properties=properties or {})


def append(read_version: int, *nums_rows: int) -> Transaction:
    return transaction(read_version, Append(tuple(map(new_fragment, nums_rows))))


def overwrite(read_version: int, *nums_rows: int, **config: str) -> Transaction:
    fragments = tuple(map(new_fragment, nums_rows))
    return transaction(read_version, Overwrite(fragments, SCHEMA, config_upserts=config))


def configure(read_version: int, **entries: str | None) -> Transaction:
    update = MapUpdate(tuple(entries.items()))
    return transaction(read_version, UpdateConfig(config=update))


def delete(log: ObjectStoreLog, read_version: int, row_ids: Iterable[int]) -> Transaction:
    """Plan to delete rows by row id, and write the deletion files."""
    manifest, targets = log.read(read_version), np.array(sorted(row_ids), np.uint64)
    updated, removed = [], []
    for fragment in manifest.fragments:
        ids = ids_of(fragment)
        deleted = deleted_offsets_of(log.store, fragment)
        killed = np.flatnonzero(np.isin(ids, targets)).astype(np.uint32)
        if not len(np.setdiff1d(killed, deleted)):
            continue
        all_deleted = np.union1d(deleted, killed)
        if len(all_deleted) == fragment.physical_rows:
            removed.append(fragment.id)
            continue
        file = write_deletion_file(
            log.store, fragment.id, all_deleted, read_version, next(_numbers)
        )
        updated.append(
            Fragment(fragment.id, fragment.files, fragment.physical_rows, file, fragment.row_ids)
        )
    return transaction(read_version, Delete(tuple(updated), tuple(removed), "by row id"))


def create(*nums_rows: int, store: Store | None = None) -> ObjectStoreLog:
    log = ObjectStoreLog(store or make_store())
    outcome = commit(
        log, overwrite(0, *nums_rows), creation=CREATION, environment=make_environment()
    )
    assert isinstance(outcome, CommittedTransaction)
    return log


def commit_to(log: ObjectStoreLog, planned: Transaction, **options: Any) -> Manifest:
    options.setdefault("environment", make_environment())
    result = commit(log, planned, **options)
    assert isinstance(result, CommittedTransaction), result
    return result.manifest


def skip(log: ObjectStoreLog, planned: Transaction, **options: Any) -> NothingToCommit:
    result = commit(log, planned, environment=make_environment(), **options)
    assert isinstance(result, NothingToCommit), result
    return result


def publish_foreign(
    log: ObjectStoreLog, operation: Operation | None, changes: Mapping[str, Any] | None = None
) -> Manifest:
    """Publish a next version as another program might: with any operation, or with none stated."""

    newest = log.read_latest()
    manifest = replace(
        newest.successor(), writer_version=WriterVersion("other", "1"), **(changes or {})
    )
    if operation is not None:
        data = encode_transaction(transaction(newest.version, operation))
        manifest = replace(manifest, inline_transaction=data)
    assert log.publish(manifest.version, encode_manifest(manifest))
    return manifest


def ids_of(fragment: Fragment) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    assert isinstance(fragment.row_ids, bytes)
    return decode_row_ids(fragment.row_ids, fragment.physical_rows).to_array()


def deleted_offsets_of(store: Store, fragment: Fragment) -> "np.ndarray[Any, np.dtype[np.uint32]]":
    file = fragment.deletion_file
    if file is None:
        return np.empty(0, np.uint32)
    data = store.read(deletion_file_path(fragment.id, file))
    return decode_deletion_vector(
        data, file.file_type, fragment.physical_rows, file.num_deleted_rows
    )


def live_ids(log: ObjectStoreLog, version: int | None = None) -> list[int]:
    """The ids of all live rows, in scan order."""
    manifest = log.read(version or log.latest())
    ids: list[int] = []
    for fragment in manifest.fragments:
        ids += np.delete(ids_of(fragment), deleted_offsets_of(log.store, fragment)).tolist()
    return ids
