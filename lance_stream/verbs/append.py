"""Appends rows as new fragments.

Rows from a stream carry the batch id of their micro-batch, so that each batch is committed at most
once (see `ledger`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    BadDataError,
    ColumnsChangedError,
    CommitAbortedError,
    CommitConflictError,
    IncompatibleConflictError,
    InvalidInputError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.fields import Schema
from lance_stream.schema.projections import ids_by_path
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Append
from lance_stream.write.arrow_input import ArrowInput, can_be_read_twice, read_input
from lance_stream.write.casting import check_rows_fit
from lance_stream.write.fragments import delete_files, write_fragments, write_target
from lance_stream.write.planning import Outcome, commit_planned, replan_on_conflict
from lance_stream.write.row_checks import Check, refuse_bad_rows
from lance_stream.write.uploads import Uploads

MAX_VERSION_LAG: Final = 8
"""How far the planned version may lag behind the newest one without being planned again."""


def append(
    table: TableVersion,
    data: ArrowInput,
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
    *,
    checks: Sequence[Check] = (),
) -> Outcome:
    """Write rows into new data files and append them; see `Dataset.append`.

    Rows that can be read twice are written for `table` without opening the newest version first. If
    the commit then finds that the newest version has other columns, it writes the rows again. For
    rows that can be read only once, the newest version is opened first.

    Args:
        table: Any version; the rows are appended to the newest one.
        data: The rows.
        micro_batch: Their micro-batch, if they come from a stream.
        environment: The clock and randomness; sleeps between two attempts.
        checks: Conditions that every row must meet.
    """
    if micro_batch is None and can_be_read_twice(data):
        try:
            return _append_as_if_newest(table, data, environment, checks)
        except InvalidInputError:
            newest = newest_version_of(table)
            if _is_like(table, newest.manifest):
                raise
            table = newest
    else:
        table = newest_version_of(table)
    if micro_batch is not None:
        committed = micro_batch.find_in(table)
        if committed is not None:
            return Outcome(table, is_new=False, already_committed_in=committed.version)
    fragments = write_input(table, data, checks=checks)
    return append_fragments(table, fragments, micro_batch, environment=environment)


def _append_as_if_newest(
    table: TableVersion, data: ArrowInput, environment: Environment, checks: Sequence[Check]
) -> Outcome:
    """Append rows on the assumption that a version is still the newest.

    Args:
        table: The version.
        data: The rows; they are read again if the newest version has other columns.
        environment: See `append`.
        checks: See `append`.
    """
    with Uploads(table.store) as uploads:
        fragments = write_input(table, data, uploads, checks)
        if not fragments:
            return append_fragments(table, fragments)

        def check(newest: Manifest) -> None:
            if not _is_like(table, newest) or newest.version > table.version + MAX_VERSION_LAG:
                raise RetryableConflictError("the version is too old", newest.version)
            uploads.wait()

        try:
            operation = Append(tuple(fragments))
            return commit_planned(table, operation, check=check, environment=environment)
        except TableReplacedError:
            uploads.wait_for_all()
            delete_files(table.store, fragments)
            raise
        except CommitConflictError:
            newest = newest_version_of(table)
            uploads.wait()
        except BaseException as error:
            # If an upload failed, or the table was deleted, no version references the files.
            if not uploads.wait_for_all() or isinstance(error, NotFoundError):
                delete_files(table.store, fragments)
            raise
    if not _is_like(table, newest.manifest):
        delete_files(table.store, fragments)
        fragments = write_input(newest, data, checks=checks)
    return append_fragments(newest, fragments, environment=environment)


def write_input(
    table: TableVersion,
    data: ArrowInput,
    uploads: Uploads | None = None,
    checks: Sequence[Check] = (),
) -> list[Fragment]:
    """Write a user's rows into new data files of a table; no version names them yet.

    Raises:
        InvalidInputError: The rows do not fit the columns, or fail a check. No file is left behind.
    """
    rows: Iterable[pa.RecordBatch] = (reader := read_input(data))
    check_rows_fit(reader.schema, table.arrow_schema)
    if checks:
        rows = refuse_bad_rows(rows, table.arrow_schema, checks, table.uri)
    return write_fragments(rows, write_target(table), uploads)


def _is_like(table: TableVersion, newest: Manifest) -> bool:
    """Return whether files written for one version can be added to another."""
    return newest.schema == table.schema and newest.data_format == table.manifest.data_format


def append_fragments(
    table: TableVersion,
    fragments: Sequence[Fragment],
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
    *,
    even_without_rows: bool = False,
    check: Callable[[Manifest], None] | None = None,
) -> Outcome:
    """Append fragments that `write_fragments` wrote, on any worker.

    Args:
        table: The version whose schema the fragments were written with.
        fragments: What `write_fragments` returned. Without any, nothing is committed.
        micro_batch: Their micro-batch, if they come from a stream. If the table already has it,
            no version is committed.
        environment: The clock and randomness; sleeps between two attempts.
        even_without_rows: Whether to commit a version, for its ledger entry, even without
            fragments.
        check: Called with the newest manifest before each attempt; raises if the rows must not be
            added to it.

    The files are deleted if certainly no version references them: the table already had the batch,
    or the commit was rejected.

    Raises:
        InvalidInputError: The batch id belongs to another query's batch, or the table's columns
            have changed and the files no longer fit.
        CommitError: The fragments were not committed, or the outcome is unknown.
    """
    if not fragments and not even_without_rows:
        return Outcome(newest_version_of(table), is_new=False)
    planned_on = table

    def fits(newest: Manifest) -> None:
        check_same_names(table.schema, newest.schema)
        if check is not None:
            check(newest)

    def attempt() -> Outcome:
        nonlocal planned_on
        try:
            return commit_planned(
                planned_on,
                Append(tuple(fragments)),
                micro_batch=micro_batch,
                check=fits,
                environment=environment,
            )
        except RetryableConflictError:
            planned_on = newest_version_of(planned_on)
            if table.version and fragments:
                check_still_fits(fragments, table.schema, planned_on)
            elif not table.version:
                check_is_compatible(table, planned_on)
            raise
        except TableReplacedError:
            raise
        except IncompatibleConflictError:
            if micro_batch is not None:  # the batch will be applied after the conflicting commit
                planned_on = newest_version_of(planned_on)
                if fragments:
                    _check_is_like(table, planned_on)
            raise

    try:
        outcome = replan_on_conflict(attempt, micro_batch, environment)
    except (CommitAbortedError, CommitConflictError, InvalidInputError):
        _delete_files_of_no_version(table, fragments)
        raise
    if not outcome.is_new:
        _delete_files_of_no_version(table, fragments)
    return outcome


def _delete_files_of_no_version(table: TableVersion, fragments: Sequence[Fragment]) -> None:
    """Delete files of an uncommitted append, unless a version after `table` references them.

    An earlier call with an unknown outcome may have committed the same fragments. If that cannot be
    ruled out because a version was removed or cannot be read, nothing is deleted.
    """
    new_paths = {file.path for fragment in fragments for file in fragment.files}
    try:
        for version in range(table.version + 1, table.log.latest() + 1):
            later = table.log.read(version).fragments
            if any(file.path in new_paths for fragment in later for file in fragment.files):
                return
    except (NotFoundError, BadDataError, OSError):
        return
    delete_files(table.store, fragments)


def check_same_names(written: Schema, current: Schema) -> None:
    """Raise if a column was replaced by another one of the same name; its values would be lost.

    A column that was cast counts as replaced. Parts of columns are checked, too.

    Args:
        written: The columns that data files were written with.
        current: The columns of the table to which the files are to be added.

    Raises:
        ColumnsChangedError: A column was replaced.
    """
    if current == written:
        return
    ids = ids_by_path(written.fields)
    for path, field_id in ids_by_path(current.fields).items():
        if ids.get(path, field_id) != field_id:
            raise ColumnsChangedError(
                f"the column {'.'.join(path)!r} was replaced by another, or cast, while the rows "
                "were written; write the rows again"
            )
    types = {field.id: field.logical_type for field in written.walk()}
    for field in current.walk():  # other programs reuse field ids when they overwrite
        if types.get(field.id, field.logical_type) != field.logical_type:
            raise ColumnsChangedError(
                f"the column {field.name!r} ({field.logical_type}) took the field id of one "
                f"of type {types[field.id]} while the rows were written; write the rows again"
            )


def check_still_fits(fragments: Sequence[Fragment], written: Schema, newest: TableVersion) -> None:
    """Raise unless data files still fit a table whose columns have been changed since.

    Args:
        fragments: The fragments that were written.
        written: The columns that they were written with.
        newest: The version to which they are to be added.

    Raises:
        ColumnsChangedError: The data files no longer fit.
    """
    stored = {
        field_id for fragment in fragments for file in fragment.files for field_id in file.field_ids
    }
    leaves = {leaf.id for leaf in newest.schema.walk()}
    missing = [
        field.name
        for field in newest.schema.fields
        if not field.nullable and not any(part.id in stored for part in field.walk())
    ]
    if missing:
        raise ColumnsChangedError(
            f"the non-nullable column {missing[0]!r} was added to the table while the rows were "
            "written; write them again"
        )
    check_same_names(written, newest.schema)
    nullable = {field.id for field in written.walk() if field.nullable}
    tightened = [
        field.name for field in newest.schema.walk() if not field.nullable and field.id in nullable
    ]
    if tightened:
        raise ColumnsChangedError(
            f"the column {tightened[0]!r} became non-nullable while the rows were written; write "
            "them again"
        )
    if not stored & leaves:
        raise ColumnsChangedError(
            "the table's columns were replaced while the rows were written; write them again"
        )


def check_is_compatible(table: TableVersion, newest: TableVersion) -> None:
    """Raise unless the written files can be added to a table that another writer created.

    Args:
        table: Version 0 of the table that was to be created.
        newest: A version of the existing table.

    Raises:
        TableReplacedError: The table has other columns or another file version.
    """
    if newest.schema != table.schema or newest.file_version is not table.file_version:
        raise TableReplacedError(
            f"another writer created the table {table.uri} while the rows were written, with other "
            "columns or another file version; write them again",
            newest.version,
        )


def _check_is_like(table: TableVersion, newest: TableVersion) -> None:
    """Raise unless the written files can be added to a table that was overwritten or restored.

    Other programs reuse field ids when they overwrite, so the same id can mean another column.

    Raises:
        ColumnsChangedError: The table has other columns or another file version.
    """
    if newest.schema != table.schema or newest.file_version is not table.file_version:
        raise ColumnsChangedError(
            f"the table {newest.uri} was overwritten with other columns while the rows were "
            "written; write them again"
        )
