"""Appending: new rows behind the old ones, as new fragments.

Rows that come from a stream bring the number of their micro-batch. It is looked up in the table's
ledger before anything is written, and again on every attempt to commit; the ledger's new entry is
part of the same version as the rows. So a batch is in the table once, or not at all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lance_stream.commit.committer import Skipped
from lance_stream.dataset.arrow_input import ArrowInput, read_input
from lance_stream.dataset.casting import check_castable
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.history import read_transaction
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.write_fragments import WriteTarget, delete_files, write_fragments
from lance_stream.errors import (
    BadDataError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
)
from lance_stream.table import ledger
from lance_stream.table.fragments import Fragment
from lance_stream.table.manifest import WRITER_LIBRARY, Manifest
from lance_stream.table.operations import Append, Restore

APP_ID: Final = "lance_stream.app_id"
BATCH_ID: Final = "lance_stream.batch_id"
QUERY_ID: Final = "lance_stream.query_id"
"""Properties of the transaction that takes in a micro-batch."""

MAX_SEARCHED_VERSIONS: Final = 1000
"""How far back a foreign restore is looked for."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which micro-batch of which stream some rows are.

    Attributes:
        app_id: The stream.
        batch_id: The batch's number, from 0.
        query_id: The streaming query's own id; empty if the batch comes from none.
    """

    app_id: str
    batch_id: int
    query_id: str = ""


@dataclass(frozen=True)
class Appended:
    """What became of an append.

    Attributes:
        table: The version that was made; where none was, the newest one.
        is_new: Whether a version was made.
        taken_in_before: The version that had taken in the micro-batch before; None where none
            had, or where it does not say.
    """

    table: TableVersion
    is_new: bool
    taken_in_before: int | None = None


def write_target(table: TableVersion) -> WriteTarget:
    """Return where and how new data files of a table are written; for workers, too."""
    return WriteTarget(
        table.store,
        table.schema,
        table.file_version,
        dictionaries=table.manifest.dictionaries,
    )


def append(
    table: TableVersion, data: ArrowInput, micro_batch: MicroBatch | None = None
) -> Appended:
    """Write rows into new data files and append them; see `Dataset.append`.

    Args:
        table: Any version; the rows go behind the newest one's.
        data: The rows.
        micro_batch: Which micro-batch they are, if they come from a stream.
    """
    table = checkout(table, None)
    if micro_batch is not None:
        taken_in = find_taken_in(table, micro_batch)
        if taken_in is not None:
            return Appended(table, is_new=False, taken_in_before=taken_in.version)
    rows = read_input(data)
    check_castable(rows.schema, table.arrow_schema)
    return append_fragments(table, write_fragments(rows, write_target(table)), micro_batch)


def append_fragments(
    table: TableVersion,
    fragments: Sequence[Fragment],
    micro_batch: MicroBatch | None = None,
    properties: Mapping[str, str] | None = None,
) -> Appended:
    """Append fragments that were written before, by `write_fragments` on whatever worker.

    Args:
        table: The version whose schema they were written with.
        fragments: What `write_fragments` returned; nothing is committed if there are none.
        micro_batch: Which micro-batch they are, if they come from a stream. If the table has it
            already, no version is made.
        properties: Noted in the transaction.

    The files are deleted when it is known that no version names them: the batch was in already,
    or the commit was refused.

    Raises:
        InvalidInputError: The batch number belongs to another query's batch, or the table's
            columns were changed since so that the files no longer fit.
        CommitError: The fragments did not become a version, or it is not known whether they did.
    """
    if not fragments:
        return Appended(checkout(table, None), is_new=False)
    taken_in: list[ledger.LedgerEntry] = []

    def look_up(newest: Manifest | None) -> str | None:
        if newest is None or micro_batch is None:
            return None
        entry = find_taken_in(table.at(newest), micro_batch)
        if entry is None:
            return None
        taken_in.append(entry)
        return f"batch {micro_batch.batch_id} of {micro_batch.app_id!r} has been taken in"

    planned_on = table
    uuid = ledger.derive_uuid(micro_batch.app_id, micro_batch.batch_id) if micro_batch else None

    def attempt() -> Appended:
        nonlocal planned_on
        try:
            result = commit_operation(
                table.log,
                planned_on.version,
                Append(tuple(fragments)),
                transaction_uuid=uuid,
                properties={**(properties or {}), **properties_of(micro_batch)},
                before_attempt=look_up,
                config_entries=_entries_of(micro_batch),
            )
        except CommitConflictError:
            planned_on = checkout(table, None)
            _check_still_fits(fragments, planned_on)
            raise
        if not isinstance(result, Skipped):
            return Appended(table.at(result.manifest), is_new=True)
        now = table if result.manifest is None else table.at(result.manifest)
        return Appended(
            now, is_new=False, taken_in_before=taken_in[-1].version if taken_in else None
        )

    try:
        done = planning_again(attempt)
    except (CommitConflictError, InvalidInputError):
        _delete_files_of_no_version(table, fragments)
        raise
    if not done.is_new:
        _delete_files_of_no_version(table, fragments)
    return done


def find_taken_in(table: TableVersion, micro_batch: MicroBatch) -> ledger.LedgerEntry | None:
    """Return what says that a version has taken in a micro-batch; None if nothing does.

    That is the ledger. After a restore by another program the ledger is as old as what was
    restored; then the transactions since are looked through for the batch's own.

    Raises:
        InvalidInputError: The number belongs to another query's batch.
    """
    app_id, batch_id = micro_batch.app_id, micro_batch.batch_id
    decision = ledger.decide(table.manifest.config, app_id, batch_id, micro_batch.query_id)
    if isinstance(decision, ledger.TakenIn):
        return decision.entry
    if decision.entry is None and batch_id == 0:
        return None  # a stream that begins
    version = _find_before_restore(
        table, decision.search_after, ledger.derive_uuid(app_id, batch_id)
    )
    if version is None:
        return None
    return ledger.LedgerEntry(batch_id, micro_batch.query_id, version)


def properties_of(micro_batch: MicroBatch | None) -> dict[str, str]:
    """Return what the transaction that takes in a micro-batch notes."""
    if micro_batch is None:
        return {}
    noted = {APP_ID: micro_batch.app_id, BATCH_ID: str(micro_batch.batch_id)}
    return {**noted, QUERY_ID: micro_batch.query_id} if micro_batch.query_id else noted


def _entries_of(micro_batch: MicroBatch | None) -> Callable[[int], Mapping[str, str]] | None:
    if micro_batch is None:
        return None
    return lambda version: ledger.config_entries(
        micro_batch.app_id,
        ledger.LedgerEntry(micro_batch.batch_id, micro_batch.query_id, version),
    )


def _find_before_restore(table: TableVersion, after: int, uuid: str) -> int | None:
    """Return the version that a transaction made, if a foreign restore took its entry away.

    Raises:
        InvalidInputError: There was such a restore, and versions before it are gone, so that
            nobody can say whether the batch was taken in.
    """
    restored: int | None = None
    gap: int | None = None
    for version in range(table.version, max(after, table.version - MAX_SEARCHED_VERSIONS), -1):
        try:
            manifest = table.manifest if version == table.version else table.log.read(version)
            transaction = read_transaction(table.store, manifest)
        except NotFoundError:
            gap = version
            continue
        except BadDataError:
            continue
        if transaction is None:
            continue
        if restored is not None and transaction.uuid == uuid:
            return version
        writer = manifest.writer_version
        is_foreign = writer is None or writer.library != WRITER_LIBRARY
        if is_foreign and isinstance(transaction.operation, Restore):
            restored = restored or version
    if restored is not None and gap is not None:
        raise InvalidInputError(
            f"version {restored} restored an older version, and with it an older ledger; whether "
            f"the batch was taken in before cannot be known, for version {gap} has been cleaned "
            "up. Nothing was written. Look whether the table has the batch's rows; if not, start "
            "the stream with an app id of its own"
        )
    return None


def _delete_files_of_no_version(table: TableVersion, fragments: Sequence[Fragment]) -> None:
    """Delete files that were written after a version was read, unless a later one names them.

    The same fragments may have been committed by an earlier call whose outcome was not known. Where
    that cannot be ruled out, for a version is gone or cannot be read, nothing is deleted.
    """
    written = {file.path for fragment in fragments for file in fragment.files}
    try:
        for version in range(table.version + 1, table.log.latest() + 1):
            named = table.log.read(version).fragments
            if any(file.path in written for fragment in named for file in fragment.files):
                return
    except (NotFoundError, BadDataError, OSError):
        return
    delete_files(table.store, fragments)


def _check_still_fits(fragments: Sequence[Fragment], table: TableVersion) -> None:
    """Raise unless data files still fit a table whose columns have been changed since."""
    held = {field_id for each in fragments for file in each.files for field_id in file.field_ids}
    leaves = {leaf.id for leaf in table.schema.walk()}
    missing = [
        each.name
        for each in table.schema.fields
        if not each.nullable and not any(part.id in held for part in each.walk())
    ]
    if missing:
        raise InvalidInputError(
            f"the column {missing[0]!r}, which must not be null, was added to the table while the "
            "rows were written; write them again"
        )
    if not held & leaves:
        raise InvalidInputError(
            "the table's columns were replaced while the rows were written; write them again"
        )
