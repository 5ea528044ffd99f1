"""Applies a transaction to a version, giving the next version.

Whatever depends on the newest version is assigned here, anew in each commit attempt: the ids of new
fragments, the row ids of new rows, row versions and config entries.

`APPLY` is the table of operations; the other modules of this package apply them.

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from lance_stream.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from lance_stream.schema.computed_columns import check_declarations_hold
from lance_stream.schema.fields import Schema
from lance_stream.table.apply import (
    columns,
    config,
    field_twice,
    moved_rows,
    rows,
    stable_row_ids,
    versions,
)
from lance_stream.table.apply.next_row_id_check import check_next_row_id
from lance_stream.table.detached import check_is_attached
from lance_stream.table.feature_flags import (
    STABLE_ROW_IDS,
    check_writable,
    flags_for,
    has_stable_row_ids,
)
from lance_stream.table.manifest import (
    WRITER_LIBRARY,
    DataFormat,
    FragmentList,
    Manifest,
    WriterVersion,
)
from lance_stream.table.operations.columns import DataReplacement, Merge, Project
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite
from lance_stream.table.operations.operation import (
    Operation,
    SupportedOperation,
    UnknownOperation,
    operation_name,
)
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.versions import CreateIndex, Restore, UpdateBases
from lance_stream.table.write_ahead_logs import check_rows_in_log, has_write_ahead_log


@dataclass(frozen=True, slots=True)
class Creation:
    """Properties of a new table that cannot be changed later.

    Attributes:
        data_format: The format of the data files.
        stable_row_ids: Whether the rows have stable row ids; the only property that can be changed
            later (see `stable_row_ids`).
        table_metadata: The table's metadata.
    """

    data_format: DataFormat
    stable_row_ids: bool = True
    table_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """How the next version is created.

    Attributes:
        timestamp_nanos: The time, in nanoseconds since 1970-01-01 UTC. The version's timestamp is
            at least 1 ns after that of the previous version, even if the clock was set back.
        transaction_file: Name of the transaction's file; empty for none.
        inline_transaction: The transaction's bytes; None if there are too many.
        writer_version: The program that creates the version.
        config_entries: Config entries to set in addition to the operation's.
    """

    timestamp_nanos: int
    transaction_file: str = ""
    inline_transaction: bytes | None = None
    writer_version: WriterVersion | None = None
    config_entries: Mapping[str, str] = field(default_factory=dict)


def apply(
    manifest: Manifest | None,
    operation: Operation,
    commit: Commit,
    creation: Creation | None = None,
    restored: Manifest | None = None,
) -> Manifest:
    """Return the version that results from applying an operation to a version.

    Args:
        manifest: The newest version; None if there is no table yet.
        operation: The operation, checked for conflicts with this version, or rebased on it.
        commit: How the next version is created.
        creation: Properties of a new table; required if there is no table yet. On an existing
            table, an Overwrite uses `data_format`, and a Merge uses `stable_row_ids`.
        restored: The older version that a Restore brings back.

    Raises:
        UnsupportedFeatureError: The operation is not supported, or the table uses a feature that
            this library cannot write.
        InvalidInputError: The operation does not fit the version.
        NotFoundError: There is no table, and the operation does not create one.
    """
    if isinstance(operation, UnknownOperation) or type(operation) not in APPLY:
        raise UnsupportedFeatureError(
            f"a transaction with the operation {operation_name(operation)} cannot be committed by "
            "this version of lance-stream, which supports "
            f"{', '.join(operation_type.__name__ for operation_type in APPLY)}"
        )
    if manifest is None:
        start = _first_version(operation, creation)
    else:
        check_may_write(manifest)
        start = manifest.successor()
    next_version = APPLY[type(operation)](start, operation, _Inputs(creation, restored))
    if any(map(field_twice.may_have_field_twice, (manifest, restored))):
        next_version = field_twice.with_fields_once(next_version)
    _check_rows_in_log(manifest, next_version)
    if not isinstance(operation, Overwrite | Restore):
        check_declarations_hold(start.schema, next_version.schema)
    next_version = replace(
        next_version,
        timestamp_nanos=_timestamp_after(commit.timestamp_nanos, manifest),
        transaction_file=commit.transaction_file,
        inline_transaction=commit.inline_transaction,
        writer_version=commit.writer_version,
        config={**next_version.config, **commit.config_entries},
    )
    reader_flags, writer_flags = flags_for(next_version)
    return replace(
        next_version, reader_feature_flags=reader_flags, writer_feature_flags=writer_flags
    )


def check_may_write(manifest: Manifest, schema: Schema | None = None) -> None:
    """Raise unless a next version can be created; also called before anything is written for it.

    Args:
        manifest: The version.
        schema: The columns of the next version, if new columns get values or types change.

    Raises:
        UnsupportedFeatureError: The table uses a feature that this library cannot write.
        CorruptDataError: New rows would get row ids that others have.
        InvalidInputError: The version is detached; or the table has a write-ahead log whose rows
            do not fit the columns, or a column that LanceDB could no longer compute.
    """
    check_is_attached(manifest.version)
    check_writable(manifest)
    if schema is not None:
        check_rows_in_log(manifest, schema)
        check_declarations_hold(manifest.schema, schema)
    if has_stable_row_ids(manifest) and not _is_ours(manifest):
        check_next_row_id(manifest)


def _check_rows_in_log(before: Manifest | None, after: Manifest) -> None:
    if before is None or before.schema.fields == after.schema.fields:
        return
    if not has_write_ahead_log(after):
        return
    files = (file for fragment in after.fragments for file in fragment.files)
    check_rows_in_log(before, after.schema, {field for file in files for field in file.field_ids})


def _is_ours(manifest: Manifest) -> bool:
    """Return whether this library created a version; it keeps next_row_id correct."""
    writer = manifest.writer_version
    return writer is not None and writer.library == WRITER_LIBRARY


def _first_version(operation: Operation, creation: Creation | None) -> Manifest:
    if not isinstance(operation, Overwrite):
        raise NotFoundError(f"there is no table for the operation {operation_name(operation)}")
    if creation is None:
        raise InvalidInputError("a new table needs a data format")
    flags = STABLE_ROW_IDS if creation.stable_row_ids else 0
    return Manifest(
        version=1,
        schema=Schema(),
        fragments=FragmentList(),
        data_format=creation.data_format,
        reader_feature_flags=flags,
        writer_feature_flags=flags,
        table_metadata=dict(creation.table_metadata),
    )


def _timestamp_after(timestamp_nanos: int, before: Manifest | None) -> int:
    if before is None or before.timestamp_nanos is None:
        return timestamp_nanos
    return max(timestamp_nanos, before.timestamp_nanos + 1)


Applier: TypeAlias = Callable[[Manifest, Any, "_Inputs"], Manifest]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What some operations need in addition to the version."""

    creation: Creation | None
    restored: Manifest | None


def _overwrite(start: Manifest, operation: Overwrite, inputs: _Inputs) -> Manifest:
    data_format = inputs.creation.data_format if inputs.creation else None
    return rows.overwrite(start, operation, data_format)


def _merge(start: Manifest, operation: Merge, inputs: _Inputs) -> Manifest:
    if inputs.creation and inputs.creation.stable_row_ids and not has_stable_row_ids(start):
        return stable_row_ids.activate(start, operation)
    return columns.merge(start, operation)


def _restore(start: Manifest, operation: Restore, inputs: _Inputs) -> Manifest:
    return versions.restore(start, operation, inputs.restored)


def _without_inputs(applier: Callable[[Manifest, Any], Manifest]) -> Applier:
    return lambda start, operation, _: applier(start, operation)


APPLY: Mapping[type[SupportedOperation], Applier] = MappingProxyType(
    {
        Append: _without_inputs(rows.append),
        Delete: _without_inputs(rows.delete),
        Update: _without_inputs(rows.update),
        Overwrite: _overwrite,
        ReserveFragments: _without_inputs(moved_rows.reserve_fragments),
        Rewrite: _without_inputs(moved_rows.rewrite),
        Merge: _merge,
        Project: _without_inputs(columns.project),
        DataReplacement: _without_inputs(columns.data_replacement),
        Restore: _restore,
        CreateIndex: _without_inputs(versions.create_index),
        UpdateConfig: _without_inputs(config.update_config),
        UpdateBases: _without_inputs(versions.update_bases),
    }
)
"""How each operation is applied.

Not in the table, and refused: Clone (it creates another table), UpdateMemWalState and DataOverlay
(their data is not supported).
"""
