"""Quarantines the bad rows of a batch once, despite kills and concurrent writers of the batch.

A batch has two commits, first the bad rows in the quarantine, then the good rows in the table:

    1  the bad rows, with their app id, batch id and attempt
    2  quarantined rows that the table's ledger has not named, and never will, are marked
    3  the good rows; the ledger's entry names the attempt
    4  only after a crash between 1 and 3: rows of other attempts at the batch are deleted

A batch that is repeated after a crash usually has the same bad rows: the quarantine already has the
attempt, and nothing is written. But the table's columns or the checks may have changed, or the
query may compute other rows. Then both attempts exist until the commit of the good rows decides
which one counts (`table.state_of`).

Rows that are never named, and are marked in step 2:

    a crash                      then a sink without a quarantine, or another program, repeats the
                                 batch
    another driver was faster    it commits the batch, with another attempt or without one
    the table was re-created     its ledger has named no batch of the stream; rows of other batches
                                 belong to the previous table

A driver that was overtaken adds no rows once the table has its batch: if the quarantine has a later
batch or another attempt, its commit is bound to the state of the quarantine at the last read of the
table. So step 2 of a batch sees all rows of earlier batches.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import CommitConflictError, OtherBatchError, TableReplacedError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.quarantine.table import (
    QUARANTINE_SCHEMA,
    TABLE_KEY,
    UNNAMED,
    normalized,
    open_quarantine,
)
from lance_stream.read.scan import count_rows
from lance_stream.schema.system_columns import ROW_CREATED_AT_VERSION
from lance_stream.snapshot.opening import newest_of_same, open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.table.manifest import Manifest
from lance_stream.verbs.append import append_fragments, write_input
from lance_stream.verbs.create import plan_table
from lance_stream.verbs.delete import delete
from lance_stream.verbs.update import update
from lance_stream.write.row_checks import BadRows

_DIGESTED: Final = ("reason", "column", "row", "types", "deletes", "rules")

_MAX_LOOKS: Final = 20
"""How often a driver checks whether it was overtaken, while others write to the quarantine."""


@dataclass
class QuarantineBatch:
    """The bad rows of one batch.

    Args:
        uri: The quarantine.
        storage_options: Settings of its store.
        table_uri: The table.
        app_id: The stream.
        batch_id: The batch.

    Attributes:
        attempt: Identifies the bad rows in the quarantine; empty without bad rows.
        counts: The number of quarantined rows, by reason.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    table_uri: str
    app_id: str
    batch_id: int
    attempt: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    _before: TableVersion | None = None
    _target: TableVersion | None = None

    def begin(self, target: TableVersion) -> None:
        """Check for rows of an earlier attempt in the quarantine, before anything is written.

        Args:
            target: The table, which does not have the batch.

        Raises:
            InvalidInputError: The location has another table.
        """
        self._before = open_quarantine(self.uri, self.storage_options, self.table_uri)
        self._target = target

    def keep(
        self, bad: BadRows, rules: Mapping[str, Any], environment: Environment = MACHINE
    ) -> None:
        """Quarantine the bad rows; those of the last call count.

        Args:
            bad: The rows; there may be none.
            rules: How the sink would have written them, for a replay.
            environment: The clock and randomness.
        """
        self.attempt, self.counts = "", {}
        if bad:
            assert self._target is not None  # `begin` was called
            counts = bad.counts()
            self.attempt = set_aside(
                self.uri,
                bad.rows,
                self.app_id,
                self.batch_id,
                rules,
                self._target,
                environment,
                storage_options=self.storage_options,
            )
            self.counts = counts

    def end(self) -> None:
        """Delete the rows of other attempts; the batch is committed, with this one."""
        assert self._target is not None  # `begin` was called
        if _may_have_attempts(self._before, self.app_id, self.batch_id):
            entry = ledger_entries.read_entry(self._target.manifest.config, self.app_id)
            is_first = entry is None or entry.newest_quarantined is None
            _drop_others(self._before, self.app_id, self.batch_id, self.attempt, is_first=is_first)

    def keep_committed(self) -> None:
        """Delete bad rows of a batch that the table has, except those that its ledger names."""
        table = open_quarantine(self.uri, self.storage_options)
        if not _may_have_attempts(table, self.app_id, self.batch_id):
            return
        target = open_newest(self.table_uri, storage_options=dict(self.storage_options))
        entry = ledger_entries.read_entry(target.manifest.config, self.app_id)
        attempt, named = "", None
        if entry is not None:
            if entry.batch_id > self.batch_id:
                return
            named = entry.newest_quarantined
            if entry.batch_id == self.batch_id:
                attempt, named = entry.quarantined, entry.last_quarantined
        _drop_others(table, self.app_id, self.batch_id, attempt, is_first=named is None)


def set_aside(
    uri: str,
    bad: pa.Table,
    app_id: str,
    batch_id: int,
    rules: Mapping[str, Any],
    target: TableVersion,
    environment: Environment = MACHINE,
    *,
    storage_options: Mapping[str, Any],
) -> str:
    """Commit the bad rows of a batch to the quarantine, once, and return their attempt.

    Nothing is written if the table already has the batch.

    Args:
        uri: The quarantine; created if it does not exist.
        bad: The rows, as `row_checks.BAD_ROWS_SCHEMA`; at least one.
        app_id: The stream.
        batch_id: The batch.
        rules: How the sink would have written them, for a replay.
        target: The table that they are for, at any version.
        environment: The clock and randomness.
        storage_options: Settings of the quarantine's store.
    """
    rows = _rows_of(bad, app_id, batch_id, rules, environment)
    attempt: str = rows["attempt"][0].as_py()
    options = dict(storage_options)
    identity = _Attempt(app_id, batch_id, attempt)
    table = open_quarantine(uri, options, target.uri)
    if table is None:
        config = {TABLE_KEY: normalized(target.uri)}
        table = plan_table(uri, QUARANTINE_SCHEMA, config=config, storage_options=options)
    try:
        version = _commit(table, rows, identity, target, environment)
    except TableReplacedError:  # another writer has created it with other columns
        existing = None if table.version else open_quarantine(uri, options, target.uri)
        if existing is None:
            raise
        version = _commit(existing, rows, identity, target, environment)
    if version is not None:
        _mark_unnamed(version, identity, target)
    return attempt


@dataclass(frozen=True)
class _Attempt:
    """Identifies the rows of one attempt."""

    app_id: str
    batch_id: int
    attempt: str

    @property
    def where(self) -> str:
        return f"{_where(self.app_id, self.batch_id)} AND attempt = {_quoted(self.attempt)}"

    @property
    def name(self) -> str:
        return f"{self.app_id} {self.batch_id} {self.attempt}"


class _QuarantineChangedError(CommitConflictError):
    """Another driver has written to the quarantine since the table was read."""


def _commit(
    table: TableVersion,
    rows: pa.Table,
    identity: _Attempt,
    target: TableVersion,
    environment: Environment,
) -> TableVersion | None:
    """Commit rows to the quarantine; return a version with them, or None if they do not count.

    Raises:
        CommitConflictError: Other drivers keep writing to it.
    """
    digest = digest_of(rows.select(_DIGESTED))
    first = PendingBatch.of(identity.app_id, identity.batch_id, digest=digest)
    version = _append(table, rows, first, environment)
    if version is not None:
        return version
    # The batch id was used before: by another attempt, or by a stream that the table was made to
    # forget, or for a table that was here before. Rows that were committed then, and replayed
    # since, are not these.
    table = newest_of_same(table)
    num_stored = count_rows(table, identity.where)
    if num_stored == rows.num_rows:
        return table
    if num_stored:
        table = update(table, {"attempt": _quoted(UNNAMED)}, identity.where)
    for name in (identity.name, f"{identity.name} {environment.random_id():016x}"):
        batch = PendingBatch.of(name, 0, digest=digest)
        version = _append_unless_overtaken(table, rows, identity, batch, target, environment)
        if version is None:
            return None
        if count_rows(version, identity.where):
            return version
    return None


def _append_unless_overtaken(
    table: TableVersion,
    rows: pa.Table,
    identity: _Attempt,
    batch: PendingBatch,
    target: TableVersion,
    environment: Environment,
) -> TableVersion | None:
    """Append rows, unless the table has their batch by then.

    Returns:
        The version with the rows; the newest one if the name is taken; None if the table has the
        batch.

    Raises:
        CommitConflictError: Other drivers keep writing to the quarantine.
    """
    for _ in range(_MAX_LOOKS):
        table = newest_of_same(table)
        seen = _entries(table.manifest, identity.app_id)
        entry = ledger_entries.read_entry(newest_of_same(target).manifest.config, identity.app_id)
        if entry is not None and entry.batch_id >= identity.batch_id:
            return None

        def check(newest: Manifest, seen: Mapping[str, str] = seen) -> None:
            if _entries(newest, identity.app_id) != seen:
                raise _QuarantineChangedError("others have written to the quarantine")

        with suppress(_QuarantineChangedError):
            version = _append(table, rows, batch, environment, check)
            return newest_of_same(table) if version is None else version
    raise CommitConflictError(
        f"other drivers keep writing to the quarantine {table.uri}; nothing was committed. "
        "Run the query in one driver"
    )


def _append(
    table: TableVersion,
    rows: pa.Table,
    batch: PendingBatch,
    environment: Environment,
    check: Callable[[Manifest], None] | None = None,
) -> TableVersion | None:
    """Append rows under a name in the quarantine's ledger; return None if it is taken."""
    try:
        fragments = write_input(table, rows)
        done = append_fragments(table, fragments, batch, environment=environment, check=check)
    except OtherBatchError:
        return None
    return done.table if done.is_new else None


def _rows_of(
    bad: pa.Table,
    app_id: str,
    batch_id: int,
    rules: Mapping[str, Any],
    environment: Environment,
) -> pa.Table:
    num_rows = bad.num_rows
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=environment.now_nanos() // 1000)
    values: dict[str, Any] = {
        "app_id": [app_id] * num_rows,
        "batch_id": [batch_id] * num_rows,
        "attempt": [""] * num_rows,
        "time": [now] * num_rows,
        "rules": [json.dumps(rules, sort_keys=True)] * num_rows,
        "replay": [None] * num_rows,
    }
    columns = [
        pa.chunked_array([pa.array(values[field.name], field.type)])
        if field.name in values
        else bad[field.name]
        for field in QUARANTINE_SCHEMA
    ]
    rows = pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)
    attempt = digest_of(rows.select(_DIGESTED)).text
    index = QUARANTINE_SCHEMA.get_field_index("attempt")
    attempts = pa.array([attempt] * num_rows, pa.string())
    return rows.set_column(index, QUARANTINE_SCHEMA.field(index), attempts)


# --- rows that count nothing


def _mark_unnamed(table: TableVersion, identity: _Attempt, target: TableVersion) -> None:
    """Mark rows that the table's ledger has not named, and never will: usually none.

    Args:
        table: A version of the quarantine that has the rows of this attempt.
        identity: This attempt.
        target: The table, at any version.
    """
    app_id, batch_id = identity.app_id, identity.batch_id
    newest = newest_of_same(target)
    entry = ledger_entries.read_entry(newest.manifest.config, app_id)
    if entry is not None and entry.batch_id >= batch_id:
        return  # another driver was faster
    last, attempt = (-1, "") if entry is None else entry.newest_quarantined or (-1, "")
    if last < 0:
        _forget_other_tables(table, app_id, batch_id, identity.attempt)
        return
    before = _batch_before(table, app_id, batch_id)
    is_named = before == last and not _has_others(table, app_id, last)
    if is_named or (before is not None and before < last):
        return
    assert entry is not None  # it has named a batch
    _mark(
        table,
        app_id,
        f"batch_id <= {entry.batch_id} AND batch_id < {batch_id} "
        f"AND (batch_id > {last} OR (batch_id = {last} AND attempt <> {_quoted(attempt)}))",
    )


def _drop_others(
    table: TableVersion | None, app_id: str, batch_id: int, attempt: str, *, is_first: bool
) -> None:
    """Delete the rows of a committed batch's other attempts.

    Args:
        table: The quarantine, at a version before any later batch of the table.
        app_id: The stream.
        batch_id: The batch.
        attempt: The attempt that the table's ledger names; empty without bad rows.
        is_first: Whether the table's ledger has named no batch before.
    """
    assert table is not None  # it may have attempts
    if is_first and _forget_other_tables(table, app_id, batch_id, attempt):
        return
    others = f"attempt <> {_quoted(attempt)} AND attempt <> {_quoted(UNNAMED)}"
    delete(table, f"{_where(app_id, batch_id)} AND {others}")


def _forget_other_tables(table: TableVersion, app_id: str, batch_id: int, attempt: str) -> bool:
    """Mark the rows of a previous table; return whether there were any.

    Args:
        table: A version of the quarantine; only its rows are marked.
        app_id: The stream, of which the table's ledger has named no batch.
        batch_id: The batch under way: other batches belong to a table before.
        attempt: The attempt under way. Other attempts at the batch may be of a table before, too.
    """
    entry = ledger_entries.read_entry(table.manifest.config, app_id)
    is_only = entry is not None and entry.batch_id == batch_id and not entry.recent
    if is_only or not count_rows(table, f"{_open_rows(app_id)} AND batch_id <> {batch_id}"):
        return False
    _mark(table, app_id, f"(batch_id <> {batch_id} OR attempt <> {_quoted(attempt)})")
    return True


def _mark(table: TableVersion, app_id: str, condition: str) -> None:
    """Mark rows that a version of the quarantine has."""
    created = f"{ROW_CREATED_AT_VERSION} <= {table.version}"
    where = f"{_open_rows(app_id)} AND {condition} AND {created}"
    update(table, {"attempt": _quoted(UNNAMED)}, where)


def _open_rows(app_id: str) -> str:
    return f"app_id = {_quoted(app_id)} AND attempt <> {_quoted(UNNAMED)}"


def _may_have_attempts(table: TableVersion | None, app_id: str, batch_id: int) -> bool:
    """Return whether a quarantine may have rows of a batch that is not committed yet."""
    if table is None:
        return False
    entry = ledger_entries.read_entry(table.manifest.config, app_id)
    return entry is not None and entry.batch_id >= batch_id


def _batch_before(table: TableVersion, app_id: str, batch_id: int) -> int | None:
    """Return the last batch with rows here before one that has just been set aside; -1 for none.

    Returns:
        None if it is unknown: the quarantine has had later batches.
    """
    entry = ledger_entries.read_entry(table.manifest.config, app_id)
    if entry is None or entry.batch_id != batch_id:
        return None
    return entry.recent[0].batch_id if entry.recent else -1


def _has_others(table: TableVersion, app_id: str, batch_id: int) -> bool:
    """Return whether there was more than one attempt at a batch; see `_commit`."""
    others = ledger_entries.config_key(f"{app_id} {batch_id} ")
    return any(key.startswith(others) for key in table.manifest.config)


def _entries(manifest: Manifest, app_id: str) -> dict[str, str]:
    """Return the ledger's entries of a stream, and of its attempts."""
    prefix = ledger_entries.config_key(app_id)
    return {key: text for key, text in manifest.config.items() if key.startswith(prefix)}


def _where(app_id: str, batch_id: int) -> str:
    return f"app_id = {_quoted(app_id)} AND batch_id = {batch_id}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
