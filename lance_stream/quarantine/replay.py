"""Lists the quarantined rows of a table, and writes them to the table once they fit.

A replay moves rows in steps and can be killed at any moment:

    1  claim    mark the rows with the number of the replay
    2  commit   write them to the table, and the number to its ledger, in one version
    3  delete   delete the rows with the number from the quarantine

The next replay first resolves the claims of earlier ones. If the table's ledger has the number, the
claimed rows are deleted. Otherwise the number is added to the ledger without rows, so that a replay
that is still running can no longer commit it, and the claim is removed from the rows.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lance_stream.arguments import repeated_names
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CommitConflictError,
    CorruptDataError,
    InvalidInputError,
    OtherBatchError,
)
from lance_stream.expressions.predicates import evaluate, parse_predicate, parse_value
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import NO_ROWS, digest_of
from lance_stream.quarantine.quarantine_writer import publish, staged_rows
from lance_stream.quarantine.table import (
    TABLE_KEY,
    open_quarantine,
    published_key,
    quarantine_uri,
)
from lance_stream.read.scan import scan
from lance_stream.read.take import take
from lance_stream.schema.system_columns import DELETES, ROW_ID
from lance_stream.snapshot.opening import newest_version_of, open_newest
from lance_stream.snapshot.references import branch_uri
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.upsert.rules import INSERT, UPDATE, UpsertRules, with_one_time
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append, append_fragments
from lance_stream.verbs.delete import delete
from lance_stream.verbs.update import update
from lance_stream.write.arrow_input import one_batch
from lance_stream.write.casting import check_castable
from lance_stream.write.row_checks import Check, RowRules, as_checks
from lance_stream.write.rows_as_json import CORRUPT_REMEDY, rows_from_json

APP_ID: Final = "lance_stream.quarantine"
"""The app id of replays in the ledger of the table."""

READY: Final = "ready"
STALE: Final = "stale"

ROWS_PER_COMMIT: Final = 10_000
"""The number of rows per commit of a replay."""

_WITHOUT_ORDER: Final = (
    "without sequence_by, they may be older than the rows of the table; replace_existing=True "
    "writes them"
)
_DERIVED: Final = (
    "a function failed for them: correct it and change its version; derive() computes these rows "
    "again and removes them from the quarantine"
)
_OVERWRITTEN: Final = (
    "their batch overwrote the table, as every later batch does: correct the query"
)

Fix: TypeAlias = Callable[[pa.Table], pa.Table] | Mapping[str, str]
"""Corrects rows: a function of a table of rows, or SQL expressions by column."""


@dataclass(frozen=True)
class QuarantinedRows:
    """Quarantined rows of one batch with the same reason.

    Attributes:
        app_id: The stream.
        batch_id: The batch.
        reason: The reason: the name of a check, "null key", "null" or "type".
        column: The offending column; None if the reason concerns no single column.
        num_rows: The number of rows.
        time: The time at which the first row was quarantined.
        message: The problem of the first row.
        row: The first row, as JSON.
        state: "ready" if a replay writes the rows that fit. "stale" if no replay does: the rows
            belong to a previous table at the location, or to a stream that the table has forgotten,
            and stay until you delete them.
    """

    app_id: str
    batch_id: int
    reason: str
    column: str | None
    num_rows: int
    time: datetime
    message: str
    row: str
    state: str


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a replay.

    Attributes:
        rows_replayed: The number of rows that left the quarantine: the table has them, or a newer
            row of their key (`sequence_by`).
        rows_remaining: The number of rows that stay in the quarantine, by reason.
    """

    rows_replayed: int = 0
    rows_remaining: Mapping[str, int] = field(default_factory=dict)


def list_quarantine(
    uri: str,
    *,
    branch: str | None = None,
    quarantine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[QuarantinedRows]:
    """Return the quarantined rows of a table, grouped by batch and reason, oldest batch first.

    Args:
        uri: The table's location.
        branch: The branch that the sink writes; None for the main branch.
        quarantine: The location of the quarantine; by default, next to the table. Required for a
            branch.
        storage_options: Settings of the store.

    Raises:
        InvalidInputError: There is another table at the quarantine's location; the table is itself
            a quarantine; or the location of a branch's quarantine is missing.
    """
    table, bad, _ = _open(uri, branch, quarantine, storage_options)
    columns = ["app_id", "batch_id", "stale", "reason", "column", "time", "message", "row"]
    batches = [] if bad is None else [scan(bad, columns)]
    for name in dict(_unpublished(table, bad)).values():
        rows = staged_rows(table, name)
        batches.extend([] if rows is None else [rows.select(columns).to_batches()])
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for batch in itertools.chain.from_iterable(batches):
        for row in batch.to_pylist():
            key = tuple(row[name] for name in columns[:5])
            group = groups.setdefault(key, [0, row])
            group[0] += 1
            if row["time"] < group[1]["time"]:
                group[1] = row
    entries = [
        QuarantinedRows(
            app_id,
            batch_id,
            reason,
            column,
            num_rows,
            first["time"],
            first["message"],
            first["row"],
            STALE if stale or not app_id else READY,
        )
        for (app_id, batch_id, stale, reason, column), (num_rows, first) in groups.items()
    ]
    return sorted(entries, key=lambda entry: (entry.app_id, entry.batch_id, entry.reason))


def replay_quarantine(
    uri: str,
    *,
    branch: str | None = None,
    quarantine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    where: str | None = None,
    fix: Fix | None = None,
    expect: object = None,
    replace_existing: bool = False,
    environment: Environment = MACHINE,
) -> ReplayResult:
    """Write the quarantined rows that now fit the table to it, each exactly once.

    Rows are appended, or upserted by the key of the sink that quarantined them, and removed from
    the quarantine. Rows that still do not fit stay there. An interrupted replay can be repeated.

    Args:
        uri: The table's location.
        branch: The branch that the sink writes; None for the main branch.
        quarantine: The location of the quarantine; by default, next to the table. Required for a
            branch.
        storage_options: Settings of the store.
        where: A SQL condition on the quarantine's columns, such as "reason = 'price'", that selects
            the rows to replay; None for all.
        fix: Corrects rows before they are checked: a mapping from columns to SQL expressions, such
            as {"price": "-price"}, or a function that takes a `pyarrow.Table` and returns one with
            the same number of rows, in the same order.
        expect: The conditions that rows must meet, as for `lance_sink`; by default the conditions
            with which the sink quarantined them. An empty mapping means no conditions.
        replace_existing: Whether upserted rows without an order (`sequence_by`) may replace rows of
            the table, even if those are newer. By default such rows stay in the quarantine.
        environment: The clock and randomness.

    Returns:
        The numbers of replayed and remaining rows.

    Raises:
        InvalidInputError: An argument is invalid, there is another table at the quarantine's
            location, or the location of a branch's quarantine is missing.
        CommitError: The rows were not committed, or another replay is running.
    """
    checks = None if expect is None else as_checks(expect)
    table, bad, location = _open(uri, branch, quarantine, storage_options)
    unpublished = dict(_unpublished(table, bad))
    for app_id in unpublished:
        publish(location, storage_options or {}, table, app_id)
    if unpublished:
        table, bad, _ = _open(uri, branch, quarantine, storage_options)
    if bad is None:
        return ReplayResult()
    if where is not None:
        where = parse_predicate(where, bad.arrow_schema).text
    bad = _resolve_claims(table, bad, environment)
    replay = _Replay(table, bad, checks, fix, environment, replace_existing=replace_existing)
    try:
        return replay.run(where)
    except OtherBatchError as error:
        raise CommitConflictError(
            f"another replay of the quarantine of {uri} ran at the same time. Rows that were not "
            "replayed are still in the quarantine: run it again"
        ) from error


def _open(
    uri: str,
    branch: str | None,
    quarantine: str | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[TableVersion, TableVersion | None, str]:
    """Return a table, its quarantine, which is None if it does not exist yet, and its location.

    Raises:
        InvalidInputError: The table is itself a quarantine, or the location of a branch's
            quarantine is missing.
    """
    options = dict(storage_options or {})
    table_uri = branch_uri(uri, branch)
    location = quarantine or quarantine_uri(table_uri)
    table = open_newest(table_uri, storage_options=options)
    bad = open_quarantine(location, options, table_uri)
    if bad is not None:
        return table, bad, location
    source = table.manifest.config.get(TABLE_KEY)
    if source is not None:
        raise InvalidInputError(
            f"the table {table.uri} is itself the quarantine of {source!r}: pass the location "
            "of that table"
        )
    if quarantine is None and table_uri != uri:
        raise InvalidInputError(
            f"there is no quarantine at {location}: a sink of a branch writes bad rows to a "
            "location of your choice. Pass that location as the quarantine"
        )
    return table, None, location


def _unpublished(table: TableVersion, bad: TableVersion | None) -> Iterator[tuple[str, str]]:
    """Yield streams whose staged file the quarantine does not have yet, and the file's name.

    The file may not exist: see `staged_rows`.
    """
    published = {} if bad is None else bad.manifest.config
    for app_id, entry in ledger_entries.read_entries(table.manifest.config).items():
        if entry.quarantined and published.get(published_key(app_id)) != entry.quarantined:
            yield app_id, entry.quarantined


# --- claims of earlier replays


def _resolve_claims(
    table: TableVersion, bad: TableVersion, environment: Environment
) -> TableVersion:
    """Finish or undo interrupted replays, and return the quarantine's newest version.

    Raises:
        InvalidInputError: It is unknown whether a replay has committed its rows.
    """
    claims: set[int] = set()
    for batch in scan(bad, ["replay"], "replay IS NOT NULL"):
        claims.update(batch.column(0).to_pylist())
    for number in sorted(claims):
        if _is_committed(table, number, environment):
            bad = delete(bad, f"replay = {number}", environment)
        else:
            bad = update(bad, {"replay": "NULL"}, f"replay = {number}", environment)
    return bad


def _is_committed(table: TableVersion, number: int, environment: Environment) -> bool:
    """Return whether a table has the rows of a replay; if not, keep it from committing them.

    Raises:
        InvalidInputError: The ledger no longer has the replay's entry.
    """
    fence = PendingBatch.of(APP_ID, number, digest=NO_ROWS)
    newest = append_fragments(
        newest_version_of(table), [], fence, environment=environment, even_without_rows=True
    ).table
    entry = ledger_entries.read_entry(newest.manifest.config, APP_ID)
    entries = () if entry is None else (entry, *entry.recent)
    for entry in entries:
        if entry.batch_id == number:
            return bool(entry.num_rows)
    is_shortened = len(entries) == 1 and ledger_entries.is_silent(entries[0], newest.version)
    is_complete = len(entries) <= ledger_entries.MAX_RECENT and not is_shortened
    if is_complete or not entries or entries[-1].batch_id < number:
        return False
    raise InvalidInputError(
        f"it is unknown whether the table {table.uri} has the rows of replay {number}: too many "
        "other replays or commits have followed it. Check whether the table has these rows. If it "
        f"does, delete the rows with replay = {number} from the quarantine; otherwise set that "
        "column to NULL"
    )


# --- one replay


class _Replay:
    """One replay, and its outcome so far."""

    def __init__(
        self,
        table: TableVersion,
        bad: TableVersion,
        checks: tuple[Check, ...] | None,
        fix: Fix | None,
        environment: Environment,
        *,
        replace_existing: bool,
    ) -> None:
        self._table = table
        self._bad = bad
        self._checks = checks
        self._fix = fix
        self._environment = environment
        self._replace_existing = replace_existing
        self._num_replayed = 0
        self._remaining: Counter[str] = Counter()

    def run(self, where: str | None) -> ReplayResult:
        """Replay the rows that a condition selects."""
        columns = ["app_id", "batch_id", "rules", "types"]
        condition = "replay IS NULL AND NOT stale AND app_id <> ''"
        if where is not None:
            condition += f" AND ({where})"
        groups: dict[tuple[Any, ...], list[int]] = {}
        for batch in scan(self._bad, columns, condition, with_row_id=True):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                app_id, batch_id, rules, types, row_id = values
                recorded = _recorded(rules)
                has_order = recorded["mode"] != "upsert" or recorded["sequence_by"]
                batch_key = () if has_order else (batch_id, app_id)
                groups.setdefault((batch_key, rules, types), []).append(row_id)
        for (_, rules, types), row_ids in sorted(groups.items(), key=lambda group: group[0][0]):
            for start in range(0, len(row_ids), ROWS_PER_COMMIT):
                self._move(row_ids[start : start + ROWS_PER_COMMIT], _recorded(rules), types)
        return ReplayResult(self._num_replayed, dict(self._remaining.most_common()))

    def _move(self, row_ids: Sequence[int], recorded: Mapping[str, Any], types: str) -> None:
        """Move those of some rows that fit to the table."""
        if recorded["mode"] == "overwrite":
            self._remaining[_OVERWRITTEN] += len(row_ids)
            return
        if recorded["mode"] == "derive":
            self._remaining[_DERIVED] += len(row_ids)
            return
        is_ordered = recorded["mode"] != "upsert" or recorded["sequence_by"]
        if not is_ordered and not self._replace_existing:
            self._remaining[_WITHOUT_ORDER] += len(row_ids)
            return
        fitting = self._fitting(row_ids, recorded, types)
        if not fitting.num_rows:
            return
        number = self._next_number()
        id_list = ", ".join(map(str, fitting[ROW_ID].to_pylist()))
        claimed = update(
            self._bad,
            {"replay": str(number)},
            f"replay IS NULL AND {ROW_ID} IN ({id_list})",
            self._environment,
        )
        claimed_ids: set[int] = set()
        for batch in scan(claimed, ["replay"], f"replay = {number}", with_row_id=True):
            claimed_ids.update(batch.column(ROW_ID).to_pylist())
        is_claimed = pa.array([row_id in claimed_ids for row_id in fitting[ROW_ID].to_pylist()])
        self._commit(fitting.filter(is_claimed).drop_columns([ROW_ID]), recorded, number)
        delete(claimed, f"replay = {number}", self._environment)
        self._num_replayed += len(claimed_ids)

    def _next_number(self) -> int:
        """Return a new replay number: ascending, and different in each process."""
        newest = newest_version_of(self._table)
        entry = ledger_entries.read_entry(newest.manifest.config, APP_ID)
        after = -1 if entry is None else entry.batch_id
        return max(self._environment.now_nanos(), after + 1 + self._environment.random_id() % 1024)

    def _commit(self, rows: pa.Table, recorded: Mapping[str, Any], number: int) -> None:
        if not rows.num_rows:
            return
        hidden = [
            name for name in (*recorded["except_columns"], DELETES) if name in rows.column_names
        ]
        batch = PendingBatch.of(APP_ID, number, digest=digest_of(rows))
        if recorded["mode"] != "upsert":
            append(self._table, rows.drop_columns(hidden), batch, self._environment)
            return
        seconds = recorded.get("tombstones")
        rules = UpsertRules(
            on=tuple(recorded["on"]),
            sequence_by=recorded["sequence_by"],
            delete_when=f"{DELETES} = true",
            except_columns=tuple(hidden),
            skip_unchanged=bool(recorded.get("skip_unchanged")),
            tombstones=None if seconds is None else timedelta(seconds=seconds),
            when_matched=with_one_time(recorded.get("when_matched"), UPDATE),
            when_not_matched=with_one_time(recorded.get("when_not_matched"), INSERT),
        )
        upsert(self._table, rows, rules, batch, environment=self._environment)

    def _fitting(self, row_ids: Sequence[int], recorded: Mapping[str, Any], types: str) -> pa.Table:
        """Apply the corrections to some rows, and return those that fit the table, with row ids."""
        stored = take(self._bad, row_ids=row_ids, columns=["row", "deletes", "reason"])
        rows = rows_from_json(stored["row"].to_pylist(), types)
        rows = _fixed(rows, self._fix)
        needed = (*recorded["on"], *filter(None, [recorded["sequence_by"]]))
        missing = [name for name in needed if name not in rows.column_names]
        if missing:
            reason = f"they have no column {missing[0]!r}, which an upsert needs"
            self._remaining[reason] += len(row_ids)
            return rows.slice(0, 0)
        self._table = newest_version_of(self._table)
        table = self._table.arrow_schema
        not_stored = set(recorded["except_columns"])
        incoming = pa.schema([field for field in rows.schema if field.name not in not_stored])
        is_by_key = recorded["mode"] == "upsert"
        target = table
        if is_by_key:
            target = pa.schema([field for field in table if field.name in incoming.names])
        rows = rows.append_column(ROW_ID, pa.array(row_ids, pa.uint64()))
        rows = rows.append_column(DELETES, stored["deletes"])
        rules = RowRules(
            stored=pa.schema([field for field in table if field.name in incoming.names]),
            checks=_recorded_checks(recorded) if self._checks is None else self._checks,
            keys=tuple(recorded["on"]),
            sequence_by=recorded["sequence_by"],
            deletes=DELETES,
            casts=False,
            hidden=(DELETES, ROW_ID),
        )
        try:
            check_castable(incoming, target)
        except InvalidInputError as error:
            self._remaining[str(error)] += rows.num_rows
            return rows.slice(0, 0)
        rules.check_batch(rows.schema)
        verdict = rules.judge(one_batch(rows))
        if verdict.bad.num_rows:
            bad = zip(
                verdict.bad["reason"].to_pylist(), verdict.bad["rows"].to_pylist(), strict=True
            )
            for reason, num_rows in bad:
                self._remaining[reason] += num_rows
        return pa.Table.from_batches([verdict.good])


def _fixed(rows: pa.Table, fix: Fix | None) -> pa.Table:
    """Return rows with the user's corrections applied.

    Raises:
        InvalidInputError: The function returns another number of rows, or an expression is invalid.
    """
    if fix is None:
        return rows
    if not isinstance(fix, Mapping):
        if not callable(fix):
            raise InvalidInputError(
                "fix must be a mapping of columns to SQL expressions, such as "
                f"{{'price': '-price'}}, or a function of a table of rows, not {fix!r:.200}"
            )
        fixed = fix(rows)
        if not isinstance(fixed, pa.Table) or fixed.num_rows != rows.num_rows:
            result = f"{fixed.num_rows}" if isinstance(fixed, pa.Table) else type(fixed).__name__
            raise InvalidInputError(
                f"fix must return as many rows as it receives, in the same order: it received "
                f"{rows.num_rows} and returned {result}"
            )
        return fixed
    batch = one_batch(rows)
    for name, text in fix.items():
        values = evaluate(parse_value(text, batch.schema), batch)
        index = rows.schema.get_field_index(name)
        if index < 0:
            rows = rows.append_column(name, values)
        else:
            rows = rows.set_column(index, name, _in_type_of(rows.field(index), values))
    return rows


def _in_type_of(column: pa.Field, values: pa.Array) -> pa.Array:
    """Cast the values of an expression to the type of its column, since arithmetic widens types.

    Raises:
        InvalidInputError: A value does not fit.
    """
    try:
        return values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the expression for {column.name!r} returns values that do not fit {column.type}: "
            f"{error}"
        ) from None


def _recorded(text: str) -> dict[str, Any]:
    """Return the rules that a sink recorded with a row.

    Raises:
        CorruptDataError: They are invalid.
    """
    try:
        rules = json.loads(text)
        lists = [rules["on"], rules["except_columns"]]
        is_valid = rules["mode"] in ("append", "upsert", "overwrite", "derive") and all(
            isinstance(names, list) and all(isinstance(name, str) for name in names)
            for names in lists
        )
        is_valid &= isinstance(rules["sequence_by"], str | None) and isinstance(
            rules["expect"], dict
        )
        is_valid &= not any(map(repeated_names, lists)) and _is_age(rules.get("tombstones"))
    except (ValueError, TypeError, KeyError, RecursionError):
        is_valid = False
    if not is_valid:
        raise CorruptDataError(
            f"the rules of a quarantined row are damaged: {text[:200]!r}. {CORRUPT_REMEDY}"
        )
    return dict(rules)


def _is_age(seconds: object) -> bool:
    """Return whether a value is None or a valid age in seconds."""
    if seconds is None:
        return True
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return False
    return 0 <= seconds <= timedelta.max.total_seconds()


def _recorded_checks(recorded: Mapping[str, Any]) -> tuple[Check, ...]:
    try:
        return tuple(
            Check(name, condition["condition"], tuple(condition["columns"].items()))
            for name, condition in recorded["expect"].items()
        )
    except (TypeError, KeyError, AttributeError):
        raise CorruptDataError(
            f"the checks of a quarantined row are damaged: {str(recorded['expect'])[:200]}"
        ) from None
