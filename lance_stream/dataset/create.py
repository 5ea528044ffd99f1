"""Making a table: its first version, without rows; or with the ones that were written for it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lance_stream.commit.committer import Skipped
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.dataset.commit_verb import commit_operation
from lance_stream.dataset.micro_batches import MicroBatch, entries_of, properties_of
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.write_fragments import check_dictionaries
from lance_stream.errors import CommitConflictError, InvalidInputError, NotFoundError
from lance_stream.file.blobs import with_blobs_of
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import DEFAULT_FILE_VERSION, FileVersion
from lance_stream.schema.arrow_schemas import (
    PRIMARY_KEY_METADATA,
    PRIMARY_KEY_POSITION_METADATA,
    from_arrow,
    to_arrow,
)
from lance_stream.schema.field_ids import assign_ids
from lance_stream.schema.fields import Schema
from lance_stream.schema.system_columns import SYSTEM_COLUMNS
from lance_stream.table import ledger
from lance_stream.table.apply import Creation
from lance_stream.table.manifest import DataFormat
from lance_stream.table.operations import Overwrite


def create_table(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    *,
    file_version: str | None = None,
    stable_row_ids: bool = True,
    primary_key: Sequence[str] | None = None,
    config: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TableVersion:
    """Make a table, and return its first version; see `create_dataset`."""
    if not isinstance(schema, pa.Schema):
        raise InvalidInputError(f"a schema is a pyarrow.Schema, not a {type(schema).__name__}")
    version = DEFAULT_FILE_VERSION if file_version is None else FileVersion.parse(file_version)
    version.check_supported()
    tree = new_schema(with_primary_key(schema, primary_key or ()), version)
    check_types(tree.fields, version)
    check_dictionaries(tree, version, {})
    log = open_log(uri, storage_options)
    try:
        existing = log.latest()
    except NotFoundError:
        pass
    else:
        raise _already_there(log.store.uri, existing)
    made = create_with_fragments(
        uri,
        log,
        Overwrite((), tree, config_upserts=check_config(config or {})),
        version,
        stable_row_ids=stable_row_ids,
        storage_options=storage_options,
    )
    if made is None:
        raise _already_there(log.store.uri, None)
    return made


def create_with_fragments(
    uri: str | os.PathLike[str],
    log: VersionLog,
    first: Overwrite,
    version: FileVersion,
    *,
    stable_row_ids: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    micro_batch: MicroBatch | None = None,
) -> TableVersion | None:
    """Make a table whose first version has rows already; None if there is a table.

    Args:
        uri: Where, as the user wrote it.
        log: The history that the table will have.
        first: The columns, numbered; and the fragments, written by `write_fragments`.
        version: Of the data files.
        stable_row_ids: Whether a row keeps its id for its whole life.
        storage_options: What opening the store took.
        micro_batch: Which micro-batch the rows are, if they come from a stream.

    Raises:
        CommitUncertainError: Nobody knows whether the table was made.
    """
    try:
        result = commit_operation(
            log,
            0,
            first,
            transaction_uuid=(
                ledger.derive_uuid(micro_batch.app_id, micro_batch.batch_id)
                if micro_batch
                else None
            ),
            properties=properties_of(micro_batch),
            creation=Creation(
                DataFormat("lance", version.manifest_name), stable_row_ids=stable_row_ids
            ),
            before_attempt=lambda newest: None if newest is None else "the table is there",
            config_entries=entries_of(micro_batch),
        )
    except CommitConflictError:
        return None
    if isinstance(result, Skipped):
        return None
    return TableVersion(
        uri=os.fspath(uri),
        storage_options=dict(storage_options or {}),
        store=log.store,
        log=log,
        manifest=result.manifest,
    )


def new_schema(schema: pa.Schema, version: FileVersion, first_id: int = 0) -> Schema:
    """Return the tree of a new table's columns, numbered from `first_id` on.

    Raises:
        InvalidInputError: There is no column, two have one name, one has a name of ours, or a
            type cannot be stored.
        UnsupportedFeatureError: A type is not supported yet.
    """
    if not len(schema):
        raise InvalidInputError("a table needs a column at least")
    taken = sorted(SYSTEM_COLUMNS.intersection(schema.names))
    if taken:
        raise InvalidInputError(
            f"a column must not be called {', '.join(map(repr, taken))}: the name stands for what "
            "the table itself knows of a row"
        )
    tree = assign_ids(with_blobs_of(from_arrow(schema), version), first_id)
    to_arrow(tree)  # refuses what cannot be read back
    return tree


def with_primary_key(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Return the schema with columns declared the (unenforced) primary key, and so not null.

    Raises:
        InvalidInputError: A column of the key is not there, or named twice.
    """
    if isinstance(primary_key, str):
        raise InvalidInputError(f"primary_key is a list of columns: [{primary_key!r}]")
    if len(set(primary_key)) != len(primary_key):
        raise InvalidInputError(f"the primary key {list(primary_key)} names a column twice")
    for position, name in enumerate(primary_key, start=1):
        place = schema.get_field_index(name)
        if place < 0:
            raise InvalidInputError(
                f"the primary key names the column {name!r}; there are: {', '.join(schema.names)}"
            )
        field = schema.field(place)
        declared = {PRIMARY_KEY_METADATA: "true"}
        if len(primary_key) > 1:
            declared[PRIMARY_KEY_POSITION_METADATA] = str(position)
        metadata = {**(field.metadata or {}), **{k.encode(): v for k, v in declared.items()}}
        schema = schema.set(place, field.with_nullable(False).with_metadata(metadata))
    return schema


def check_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return config entries, if they are texts.

    Raises:
        InvalidInputError: One is not.
    """
    for key, value in config.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidInputError(f"config is a mapping of texts, but has {key!r}: {value!r}")
    return dict(config)


def _already_there(uri: str, version: int | None) -> InvalidInputError:
    at = "" if version is None else f", at version {version}"
    return InvalidInputError(
        f"there is a dataset at {uri} already{at}; open it with open_dataset, and replace its rows "
        "with overwrite if that is what you want"
    )
