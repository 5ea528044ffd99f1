"""A version and a transaction make the next version.

What depends on the newest version is settled here, and anew on each attempt to commit: the ids of
new fragments, the row ids of new rows, the version stamps of rows, config entries.

`APPLY` is the table of operations: what each does stands in the modules beside this one.

Source:  facts of the format, sections 1.2 and 4; measured on the reference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from lance_stream.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
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
from lance_stream.table.feature_flags import (
    STABLE_ROW_IDS,
    check_writable,
    flags_for,
    has_stable_row_ids,
)
from lance_stream.table.given_row_ids import check_next_row_id
from lance_stream.table.manifest import (
    WRITER_LIBRARY,
    DataFormat,
    FragmentList,
    Manifest,
    WriterVersion,
)
from lance_stream.table.operations import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    KnownOperation,
    Merge,
    Operation,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    UnknownOperation,
    Update,
    UpdateBases,
    UpdateConfig,
    operation_name,
)


@dataclass(frozen=True, slots=True)
class Creation:
    """What a new table is, and cannot become later.

    Attributes:
        data_format: The format of its data files.
        stable_row_ids: Whether its rows have stable row ids: the one thing that it can become (see
            `stable_row_ids`).
        table_metadata: Its metadata.
    """

    data_format: DataFormat
    stable_row_ids: bool = True
    table_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """What the next version says of its making.

    Attributes:
        timestamp_nanos: When it is made, nanoseconds since 1970-01-01 UTC. A version is later
            than the one before it, whatever the clock says.
        transaction_file: Name of the transaction's file; empty for none.
        inline_transaction: The transaction's bytes; None where they are too many.
        writer_version: Who makes it.
        config_entries: Config entries that it sets besides what the operation says.
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
    """Return the version that follows on a version by an operation.

    Args:
        manifest: The newest version; None when there is no table yet.
        operation: What is done; it was found, or made, to mean on this version what was planned.
        commit: What the next version says of its making.
        creation: What a new table is; needed when there is none yet. On an existing table an
            Overwrite takes from it the data format of its files, a Merge whether rows get stable
            row ids that have none, and nothing else.
        restored: The older version that a Restore brings back.

    Raises:
        UnsupportedFeatureError: The operation cannot be made yet, or the table uses a feature
            that we may not write.
        InvalidInputError: The operation does not fit on the version.
        NotFoundError: There is no table, and the operation does not make one.
    """
    if isinstance(operation, UnknownOperation) or type(operation) not in APPLY:
        raise UnsupportedFeatureError(
            f"a transaction that does {operation_name(operation)} cannot be committed by this "
            f"version of lance-stream; it can commit {', '.join(each.__name__ for each in APPLY)}"
        )
    if manifest is None:
        start = _first_version(operation, creation)
    else:
        check_may_write(manifest)
        start = manifest.successor()
    made = APPLY[type(operation)](start, operation, _Given(creation, restored))
    if any(map(field_twice.may_have_field_twice, (manifest, restored))):
        made = field_twice.with_fields_once(made)
    made = replace(
        made,
        timestamp_nanos=_later(commit.timestamp_nanos, manifest),
        transaction_file=commit.transaction_file,
        inline_transaction=commit.inline_transaction,
        writer_version=commit.writer_version,
        config={**made.config, **commit.config_entries},
    )
    reader_flags, writer_flags = flags_for(made)
    return replace(made, reader_feature_flags=reader_flags, writer_feature_flags=writer_flags)


def check_may_write(manifest: Manifest) -> None:
    """Return if a next version can be made; asked before anything is written for it, too.

    Raises:
        UnsupportedFeatureError: The table uses a feature that we may not write.
        CorruptDataError: New rows would get row ids that others have.
    """
    check_writable(manifest)
    if has_stable_row_ids(manifest) and not _is_ours(manifest):
        check_next_row_id(manifest)


def _is_ours(manifest: Manifest) -> bool:
    """Say whether a version was made by this code, which counts row ids on."""
    writer = manifest.writer_version
    return writer is not None and writer.library == WRITER_LIBRARY


def _first_version(operation: Operation, creation: Creation | None) -> Manifest:
    if not isinstance(operation, Overwrite):
        raise NotFoundError(f"there is no table to {operation_name(operation)} on")
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


def _later(timestamp_nanos: int, before: Manifest | None) -> int:
    if before is None or before.timestamp_nanos is None:
        return timestamp_nanos
    return max(timestamp_nanos, before.timestamp_nanos + 1)


Applier: TypeAlias = Callable[[Manifest, Any, "_Given"], Manifest]


@dataclass(frozen=True, slots=True)
class _Given:
    """What some operations need besides the version."""

    creation: Creation | None
    restored: Manifest | None


def _overwrite(start: Manifest, operation: Overwrite, given: _Given) -> Manifest:
    data_format = given.creation.data_format if given.creation else None
    return rows.overwrite(start, operation, data_format)


def _merge(start: Manifest, operation: Merge, given: _Given) -> Manifest:
    if given.creation and given.creation.stable_row_ids and not has_stable_row_ids(start):
        return stable_row_ids.activate(start, operation)
    return columns.merge(start, operation)


def _restore(start: Manifest, operation: Restore, given: _Given) -> Manifest:
    return versions.restore(start, operation, given.restored)


def _plain(applier: Callable[[Manifest, Any], Manifest]) -> Applier:
    return lambda start, operation, _: applier(start, operation)


APPLY: Mapping[type[KnownOperation], Applier] = MappingProxyType(
    {
        Append: _plain(rows.append),
        Delete: _plain(rows.delete),
        Update: _plain(rows.update),
        Overwrite: _overwrite,
        ReserveFragments: _plain(moved_rows.reserve_fragments),
        Rewrite: _plain(moved_rows.rewrite),
        Merge: _merge,
        Project: _plain(columns.project),
        DataReplacement: _plain(columns.data_replacement),
        Restore: _restore,
        CreateIndex: _plain(versions.create_index),
        UpdateConfig: _plain(config.update_config),
        UpdateBases: _plain(versions.update_bases),
    }
)
"""How each operation is applied.

Left out, and refused: Clone (it makes another table), UpdateMemWalState and DataOverlay (what they
keep we do not read).
"""
