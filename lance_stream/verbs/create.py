"""Creates a table: its first version, empty or with rows that were written for it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lance_stream.arguments import as_flag, as_mapping, as_names
from lance_stream.commit.committer import NothingToCommit
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import CommitConflictError, InvalidInputError, NotFoundError
from lance_stream.file.blobs import with_blobs_of
from lance_stream.file.encoding_options import check_encoding_options
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import DEFAULT_FILE_VERSION, FileVersion
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.arrow_schemas import (
    PRIMARY_KEY_METADATA,
    PRIMARY_KEY_POSITION_METADATA,
    from_arrow,
    to_arrow,
)
from lance_stream.schema.column_names import check_new_columns
from lance_stream.schema.computed_columns import check_declarations_hold
from lance_stream.schema.fields import Schema, assign_ids
from lance_stream.schema.primary_keys import check_primary_key
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import Commit, Creation, apply
from lance_stream.table.config.auto_cleanup import check_auto_cleanup
from lance_stream.table.config.lineage_limits import check_entries
from lance_stream.table.config.manifest_store_mark import check_not_marked
from lance_stream.table.manifest import DataFormat
from lance_stream.table.operations.rows import Overwrite
from lance_stream.verbs.append import write_input
from lance_stream.write.arrow_input import ArrowInput
from lance_stream.write.fragments import check_dictionaries, delete_files
from lance_stream.write.planning import commit_operation
from lance_stream.write.row_checks import Check


def create_table(
    planned: TableVersion, data: ArrowInput | None = None, checks: Sequence[Check] = ()
) -> TableVersion:
    """Create a table that `plan_table` planned, and return its first version.

    Args:
        planned: Version 0 of the table.
        data: The rows of its first version; None for an empty table.
        checks: Conditions that every row must meet.

    Raises:
        InvalidInputError: The table already exists, or the rows do not fit it. No file is left
            behind.
        CommitUncertainError: It is unknown whether the table was created.
    """
    log = planned.log
    try:
        existing = log.latest()
    except NotFoundError:
        pass
    else:
        raise _exists_error(log.store.uri, existing)
    fragments = [] if data is None else write_input(planned, data, checks=checks)
    table = create_with_fragments(
        planned.uri,
        log,
        Overwrite(tuple(fragments), planned.schema, config_upserts=planned.manifest.config),
        planned.file_version,
        stable_row_ids=planned.has_stable_row_ids,
        storage_options=planned.storage_options,
    )
    if table is None:
        delete_files(planned.store, fragments)
        raise _exists_error(log.store.uri, None)
    return table


def plan_table(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    *,
    file_version: str | None = None,
    stable_row_ids: bool = True,
    primary_key: str | Sequence[str] | None = None,
    config: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TableVersion:
    """Return version 0 of a table that does not exist yet: its columns, without rows.

    Nothing is written. A verb plans on it as on any version, and commits version 1 (see
    `write.planning.commit_planned`), so that a table is created together with its first rows, or
    not at all. If another writer creates the table first, the verb plans again on that table.

    Raises:
        InvalidInputError: Such a table cannot be created.
        UnsupportedFeatureError: A type, or the location's protocol, is not supported.
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidInputError(
            f"the schema must be a pyarrow.Schema, not a {type(schema).__name__}"
        )
    version = DEFAULT_FILE_VERSION if file_version is None else FileVersion.parse(file_version)
    version.check_supported()
    tree = new_schema(with_primary_key(schema, () if primary_key is None else primary_key), version)
    check_types(tree.fields, version)
    check_dictionaries(tree, version, {})
    log = open_log(uri, storage_options)
    first = apply(
        None,
        Overwrite((), tree, config_upserts=check_config({} if config is None else config)),
        Commit(timestamp_nanos=0),
        Creation(
            DataFormat("lance", version.manifest_name),
            stable_row_ids=as_flag("stable_row_ids", stable_row_ids),
        ),
    )
    return TableVersion(
        uri=os.fspath(uri),
        storage_options=dict(storage_options or {}),
        store=log.store,
        log=log,
        manifest=replace(first, version=0, timestamp_nanos=None),
    )


def check_column_types(columns: Iterable[pa.Field]) -> None:
    """Raise if rows from Spark have a column that contains only nulls and so has no type.

    A table created with it could never store a value in it.

    Raises:
        InvalidInputError: A column, or a part of one, has no type.
    """
    for column in columns:
        if _is_void(column.type):
            raise InvalidInputError(
                f"the column {column.name!r} has or contains the type null ({column.type}), which "
                "a new table cannot have; cast it to the type that its values will have, or omit "
                "it"
            )


def _is_void(kind: pa.DataType) -> bool:
    parts = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_null(kind) or any(map(_is_void, parts))


def create_with_fragments(
    uri: str | os.PathLike[str],
    log: VersionLog,
    first: Overwrite,
    version: FileVersion,
    *,
    stable_row_ids: bool = True,
    storage_options: Mapping[str, Any] | None,
    micro_batch: PendingBatch | None = None,
) -> TableVersion | None:
    """Create a table whose first version has rows; return None if the table already exists.

    Args:
        uri: The location, as the user gave it.
        log: The version log of the table.
        first: The columns, with field ids; and the fragments, written by `write_fragments`.
        version: The version of the data files.
        stable_row_ids: Whether a row keeps its id for its whole life.
        storage_options: The settings for opening the store.
        micro_batch: The rows' micro-batch, if they come from a stream.

    Raises:
        CommitUncertainError: It is unknown whether the table was created.
    """
    try:
        result = commit_operation(
            log,
            None,
            first,
            transaction_uuid=None if micro_batch is None else micro_batch.batch.uuid,
            properties=None if micro_batch is None else micro_batch.batch.properties,
            creation=Creation(
                DataFormat("lance", version.manifest_name), stable_row_ids=stable_row_ids
            ),
            before_attempt=lambda newest: None if newest is None else "the table exists",
            config_entries=None if micro_batch is None else micro_batch.ledger_entries,
        )
    except CommitConflictError:
        return None
    if isinstance(result, NothingToCommit):
        return None
    return TableVersion(
        uri=os.fspath(uri),
        storage_options=dict(storage_options or {}),
        store=log.store,
        log=log,
        manifest=result.manifest,
    )


def new_schema(schema: pa.Schema, version: FileVersion, first_id: int = 0) -> Schema:
    """Return the schema of a new table, with field ids from `first_id` on.

    Raises:
        InvalidInputError: There is no column, two have the same name, one has an invalid name, a
            type cannot be stored, or the metadata requests an unknown encoding.
        UnsupportedFeatureError: A type is not supported yet.
    """
    if not len(schema):
        raise InvalidInputError("a table needs at least one column")
    fields = from_arrow(schema)
    check_new_columns(fields.fields)
    return numbered_schema(fields, version, first_id)


def numbered_schema(fields: Schema, version: FileVersion, first_id: int) -> Schema:
    """Return columns as a table of a file version stores them; those without a field id get one.

    Raises:
        InvalidInputError: A type cannot be stored, the metadata requests an unknown encoding, or a
            column cannot be part of the primary key.
        UnsupportedFeatureError: A type is not supported yet.
    """
    for column in fields.fields:
        check_encoding_options(column)
    check_declarations_hold(None, fields)
    tree = assign_ids(with_blobs_of(fields, version), first_id)
    check_primary_key(tree.fields)
    to_arrow(tree)  # raises if the columns could not be read back
    return tree


def with_primary_key(schema: pa.Schema, primary_key: str | Sequence[str]) -> pa.Schema:
    """Return the schema with an (unenforced) primary key, whose columns become non-nullable.

    Raises:
        InvalidInputError: A column of the key does not exist, or is named twice.
    """
    primary_key = as_names(primary_key, "primary_key")
    if len(set(primary_key)) != len(primary_key):
        raise InvalidInputError(f"the primary key {list(primary_key)} names a column twice")
    for position, name in enumerate(primary_key, start=1):
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidInputError(
                f"the primary key names {name!r}; the columns are: {', '.join(schema.names)}"
            )
        field = schema.field(index)
        declared = {PRIMARY_KEY_METADATA: "true"}
        if len(primary_key) > 1:
            declared[PRIMARY_KEY_POSITION_METADATA] = str(position)
        metadata = {**(field.metadata or {}), **{k.encode(): v for k, v in declared.items()}}
        schema = schema.set(index, field.with_nullable(False).with_metadata(metadata))
    return schema


def check_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return config entries, after checking them.

    Raises:
        InvalidInputError: A key or value is not a string, or a value is not valid for its key.
    """
    as_mapping(config, "config must be a mapping from text to text, {'key': 'value'}")
    for key, value in config.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidInputError(
                f"config must be a mapping from text to text, but has {key!r}: {value!r}"
            )
    check_entries(config)
    check_auto_cleanup(config)
    check_not_marked(config)
    return dict(config)


def _exists_error(uri: str, version: int | None) -> InvalidInputError:
    suffix = "" if version is None else f", at version {version}"
    return InvalidInputError(
        f"a dataset already exists at {uri}{suffix}; open it with open_dataset, and use overwrite "
        "if you want to replace its rows"
    )
