"""Distributed writes: planned once, written by many workers, committed once.

    plan_job        one process     reads the table, and decides how and where to write files
    write_fragments each worker     with `WriteJob.target`; no version references the files yet
    commit_job      one process     commits one version with all fragments
    discard         one process     deletes the files of a job that was never committed

The processes need not share memory: a job and its fragments can be pickled. As for every verb, the
commit handles what has happened to the table since the plan.

A table that does not exist is created by the commit, with the rows in its first version: a job that
fails leaves no table behind.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from lance_stream.commit.opening import open_log
from lance_stream.commit.same_table import table_deleted_error, table_replaced_error
from lance_stream.errors import (
    ColumnsChangedError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
)
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import DEFAULT_FILE_VERSION, FileVersion
from lance_stream.ledger.lookup import has_batch_id
from lance_stream.ledger.messages import forgotten_since
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.computed_columns import check_not_computed
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.resolving import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.operations.rows import Overwrite
from lance_stream.table.version_marks import mark_of
from lance_stream.verbs.append import append_fragments, check_still_fits
from lance_stream.verbs.columns.add_columns import add_missing_columns
from lance_stream.verbs.columns.widen_columns import widen_columns
from lance_stream.verbs.create import (
    check_column_types,
    create_with_fragments,
    new_schema,
    with_primary_key,
)
from lance_stream.verbs.overwrite import overwrite_fragments
from lance_stream.write.casting import check_castable, check_rows_fit
from lance_stream.write.fragments import WriteTarget, delete_files, write_target
from lance_stream.write.planning import Outcome

NameRule: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[str]]
"""Maps incoming column names to the table's, given both."""


@dataclass(frozen=True)
class WriteJob:
    """A plan of how rows are written into a table; picklable.

    Attributes:
        uri: The table's location, as the user gave it.
        storage_options: The settings for opening its store.
        target: Where and how its new files are written.
        version: The version on which the job was planned; 0 if there was no table.
        overwrite: Whether the rows replace all rows of the table.
        config: The ledger's entries at that version.
        mark: That version's mark (`table.version_marks`); empty if there was no table.
        names: The table's names for the columns of each batch, in order; None if batches use
            the table's names.
        excluded: The columns of each batch that are not stored, by these names.
        rules: A fingerprint of the rules by which the rows are applied; empty for the default of
            an append or an overwrite.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    target: WriteTarget
    version: int
    overwrite: bool = False
    config: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""
    names: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    rules: str = ""

    @property
    def is_new(self) -> bool:
        """Whether there was no table when the job was planned."""
        return not self.version

    def has_committed(self, micro_batch: MicroBatch) -> bool:
        """Return whether the ledger had a micro-batch when the job was planned; sends no request.

        Raises:
            InvalidInputError: The batch id belongs to another query's batch.
        """
        return has_batch_id(self.config, micro_batch, self.uri)


def plan_job(
    uri: str,
    incoming: pa.Schema,
    *,
    overwrite: bool = False,
    add_columns: bool = False,
    widen_types: bool = False,
    file_version: str | None = None,
    primary_key: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    name_rule: NameRule | None = None,
    case_sensitive: bool = False,
    may_create: bool = True,
) -> WriteJob:
    """Plan how rows are written into the table at a location, and check that they fit it.

    Args:
        uri: The location of the table, which need not exist.
        incoming: The rows' schema.
        overwrite: Whether the rows replace all rows of the table.
        add_columns: Whether columns that the table lacks are added to it now.
        widen_types: Whether columns are widened now where the rows' types need it.
        file_version: The file version of a new table; the expected one of an existing table.
        primary_key: The primary key of a new table; the expected one of an existing table.
        storage_options: Settings of the store.
        name_rule: Returns the table's names of the incoming columns, and of those of the primary
            key; None if they are the same.
        case_sensitive: Whether a new name may differ from an existing one only in case.
        may_create: Whether to create a table that does not exist. False for a branch.

    Raises:
        NotFoundError: The table does not exist, and may not be created.
        InvalidInputError: The rows do not fit the table, a table cannot be created with their
            columns, or the table is not as requested.
        UnsupportedFeatureError: A type, or the location's protocol, is not supported.
    """
    options = dict(storage_options or {})
    try:
        table = open_newest(uri, storage_options=options)
    except NotFoundError:
        if not may_create:
            raise
        if name_rule is not None and primary_key is not None:
            primary_key = name_rule(primary_key, incoming.names)
        version = DEFAULT_FILE_VERSION if file_version is None else FileVersion.parse(file_version)
        version.check_supported()
        check_column_types(incoming)
        schema = new_schema(with_primary_key(incoming, primary_key or ()), version)
        check_types(schema.fields, version)
        target = WriteTarget(open_log(uri, options).store, schema, version)
        return WriteJob(uri, options, target, version=0, overwrite=overwrite)
    names = None
    if name_rule is not None:
        names = tuple(name_rule(incoming.names, table.schema.names))
        incoming = pa.schema(
            [field.with_name(name) for field, name in zip(incoming, names, strict=True)]
        )
        if primary_key is not None:
            primary_key = name_rule(primary_key, table.schema.names)
    check_is_as_requested(table, file_version, primary_key)
    target = write_target(table)
    if overwrite:
        target = replace(target, schema=_columns_after(table, incoming, primary_key))
    else:
        if widen_types:
            table = widen_columns(table, incoming, may_have_new=add_columns)
            target = write_target(table)
        existing = [field for field in table.arrow_schema if field.name in incoming.names]
        check_rows_fit(pa.schema(existing) if add_columns else incoming, table.arrow_schema)
        if add_columns:  # which also checks the types
            table = add_missing_columns(table, incoming, case_sensitive=case_sensitive)
            target = write_target(table)
    mark = mark_of(table.manifest)
    return WriteJob(
        uri, options, target, table.version, overwrite, ledger_config(table), mark, names
    )


def commit_job(
    job: WriteJob,
    fragments: Sequence[Fragment],
    micro_batch: PendingBatch | None = None,
    *,
    even_without_rows: bool = False,
) -> Outcome:
    """Commit the fragments of all workers as one version; create the table if needed.

    Args:
        job: The job.
        fragments: What `write_fragments` returned on the workers. Without any, an append commits no
            version, unless it creates the table.
        micro_batch: The rows' micro-batch, if they come from a stream. If the table already has
            it, no version is committed.
        even_without_rows: Whether a version is committed even without fragments, for its ledger
            entry.

    The files are deleted if certainly no version references them.

    Raises:
        InvalidInputError: The batch id belongs to another query's batch, or the table's columns
            have changed since the plan and the files no longer fit.
        CommitError: The fragments were not committed, or the outcome is unknown.
    """
    if not job.version:
        version = create_with_fragments(
            job.uri,
            open_log(job.uri, job.storage_options),
            Overwrite(tuple(fragments), job.target.schema),
            job.target.file_version,
            storage_options=job.storage_options,
            micro_batch=micro_batch,
        )
        if version is not None:
            return Outcome(version, is_new=True)
    try:
        table = _as_planned(job, fragments)
    except (CommitConflictError, InvalidInputError):
        discard(job, fragments)
        raise
    if job.overwrite:
        return overwrite_fragments(table, fragments, job.target.schema, micro_batch)
    return append_fragments(table, fragments, micro_batch, even_without_rows=even_without_rows)


class TablePlan(Protocol):
    """A plan that names its table."""

    @property
    def uri(self) -> str: ...  # noqa: D102  # as in `WriteJob`
    @property
    def storage_options(self) -> Mapping[str, Any]: ...  # noqa: D102  # as in the class it stands for


def require_ledger_entry(job: TablePlan, micro_batch: PendingBatch) -> ledger_entries.LedgerEntry:
    """Return the ledger's entry of a micro-batch whose batch id was in the ledger at the plan.

    Args:
        job: The job.
        micro_batch: The batch, with the digest of its rows.

    Raises:
        OtherBatchError: The table has another batch under this batch id.
        InvalidInputError: The ledger's entry has been removed since.
    """
    table = open_newest(job.uri, storage_options=job.storage_options)
    entry = micro_batch.find_in(table)
    if entry is None:
        raise forgotten_since(job.uri, micro_batch.batch)
    return entry


def discard(job: WriteJob, fragments: Iterable[Fragment]) -> None:
    """Delete the files of a job that was never committed; best effort."""
    delete_files(job.target.store, fragments)


def _as_planned(job: WriteJob, fragments: Sequence[Fragment]) -> TableVersion:
    """Return the version that the files were written for, or the newest one if that is gone."""
    try:
        newest = open_newest(job.uri, storage_options=job.storage_options)
    except NotFoundError as error:
        raise table_deleted_error(job.uri, job.version) from error
    if not job.version:
        if newest.schema != job.target.schema or newest.file_version is not job.target.file_version:
            raise InvalidInputError(
                f"another writer created the table {job.uri} while the rows were written, with "
                "other columns or another file version; write them again"
            )
        return newest
    if newest.version < job.version:
        raise table_replaced_error(job.uri, job.version, newest.version)
    try:
        planned_on = checkout(newest, job.version)
    except NotFoundError:  # cleaned up: the changes since then are unknown
        if fragments and newest.file_version is not job.target.file_version:
            raise ColumnsChangedError(
                f"the table {job.uri} was overwritten with another file version while the rows "
                "were written; write them again"
            ) from None
        if fragments and not job.overwrite:
            check_still_fits(fragments, job.target.schema, newest)
        return newest
    if mark_of(planned_on.manifest) != job.mark:
        raise table_replaced_error(job.uri, job.version, newest.version)
    return planned_on


def check_is_as_requested(
    table: TableVersion, file_version: str | None, primary_key: Sequence[str] | None
) -> None:
    """Raise if an existing table does not have the requested file version and primary key."""
    if file_version is not None:
        requested = FileVersion.parse(file_version)
        if requested is not table.file_version:
            raise InvalidInputError(
                f"the table {table.uri} has files of version {table.file_version}, not "
                f"{requested}, and a table's file version cannot change. Omit the file version, or "
                "write a new table"
            )
    key = _primary_key_of(table)
    if primary_key is not None and list(primary_key) != key:
        declared = f"the primary key {', '.join(key)}" if key else "no primary key"
        raise InvalidInputError(
            f"the table {table.uri} has {declared}, not {', '.join(primary_key)}; the primary key "
            "is declared when a table is created. Omit it, or write a new table"
        )


def _primary_key_of(table: TableVersion) -> list[str]:
    positions = [
        (field.primary_key_position, field.name)
        for field in table.schema.fields
        if field.primary_key_position is not None
    ]
    return [name for _, name in sorted(positions)]


def _columns_after(
    table: TableVersion, incoming: pa.Schema, primary_key: Sequence[str] | None
) -> Schema:
    """Return the columns of a table whose rows are replaced.

    The columns are kept if the rows have the same ones, in any order, and can be cast to them. This
    preserves properties that Spark's types do not have, such as a list's fixed size, and the key.
    """
    check_not_computed(incoming.names, table.arrow_schema)
    if sorted(incoming.names) == sorted(table.arrow_schema.names):
        with suppress(InvalidInputError):
            check_castable(incoming, table.arrow_schema)
            return table.schema
    # field ids continue, so that a column never matches a data file of an older version
    schema = new_schema(
        with_primary_key(incoming, primary_key or ()),
        table.file_version,
        table.schema.max_field_id() + 1,
    )
    check_types(schema.fields, table.file_version)
    return schema


def ledger_config(table: TableVersion) -> dict[str, str]:
    """Return the ledger's entries in a version's config."""
    config = table.manifest.config
    return {key: text for key, text in config.items() if key.startswith(ledger_entries.PREFIX)}
