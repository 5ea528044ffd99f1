"""The quarantine of a table: where it is, what it has, and how a batch's bad rows get into it.

A batch has two commits, first the bad rows here, then the good rows in the table:

    1  the bad rows, with the app id, the batch id and the attempt they belong to
    2  the good rows; the ledger's entry names the attempt
    3  only after a crash between 1 and 2: rows of other attempts of the batch are deleted

An *attempt* is the digest of a batch's bad rows and of their reasons. A batch that is repeated
after a crash usually has the same bad rows: the attempt is here already, and nothing is written.
But the table's columns or the checks may have changed, or the query may compute other rows. Then
both attempts are here until the commit of the good rows decides which one counts (`state_of`).

The batch may also be repeated by a sink without a quarantine, which commits all of its rows, or by
another program. Then the table's ledger names no attempt of it, or that of an earlier batch, and
its rows here count nothing. The next sink with a quarantine marks them (`mark_unnamed`), before
later batches are named.
"""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    OtherBatchError,
    TableReplacedError,
)
from lance_stream.read.scan import count_rows
from lance_stream.snapshot.opening import newest_of_same, open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table import ledger
from lance_stream.verbs.append import append_fragments, write_input
from lance_stream.verbs.create import plan_table
from lance_stream.verbs.delete import delete
from lance_stream.verbs.update import update
from lance_stream.write.micro_batches import MicroBatch
from lance_stream.write.row_digests import digest_of

QUARANTINE_SCHEMA: Final = pa.schema(
    [
        pa.field("app_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("attempt", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
        pa.field("types", pa.string(), nullable=False),
        pa.field("deletes", pa.bool_(), nullable=False),
        pa.field("rules", pa.string(), nullable=False),
        pa.field("replay", pa.int64()),
    ]
)
"""The stream and its batch; when and why a row was set aside; the row, see `write.rows_as_json`;
whether it deletes; the sink's rules, as JSON; the replay that is moving it to the table."""

_IDENTITY: Final = ("app_id", "batch_id", "attempt")

_DIGESTED: Final = ("reason", "column", "row", "types", "deletes", "rules")

TABLE_KEY: Final = "lance_stream.quarantine_of"
"""The config key of the location of the table whose quarantine it is."""

_UNNAMED: Final = "unnamed"
"""The attempt of rows whose batch was committed, and whose attempt was not named."""

READY: Final = "ready"
UNCOMMITTED: Final = "uncommitted"
STALE: Final = "stale"


def quarantine_uri(uri: str | os.PathLike[str]) -> str:
    """Return the location of a table's quarantine: beside it, `orders_quarantine.lance`."""
    text, question, query = os.fspath(uri).partition("?")
    return f"{text.rstrip('/').removesuffix('.lance')}_quarantine.lance{question}{query}"


def open_quarantine(
    uri: str, storage_options: Mapping[str, Any], table_uri: str | None = None
) -> TableVersion | None:
    """Return the newest version of a quarantine; None if there is none yet.

    Args:
        uri: Its location.
        storage_options: Settings of its store.
        table_uri: The table whose quarantine it has to be; None to open any. If it is beside the
            table, only the table's name counts: both may have been moved together.

    Raises:
        InvalidInputError: It is another table, or the quarantine of another table.
    """
    try:
        table = open_table(uri, storage_options=dict(storage_options))
    except NotFoundError:
        return None
    columns = {each.name: each.type for each in table.arrow_schema}
    for wanted in QUARANTINE_SCHEMA:
        if columns.get(wanted.name) != wanted.type:
            problem = "is none of its columns" if wanted.name not in columns else "has another type"
            raise InvalidInputError(
                f"the table {uri} is not a quarantine: {wanted.name!r} {problem}. Bad rows are set "
                "aside in a table of their own: give another location, quarantine_uri=..."
            )
    if not table.has_stable_row_ids:
        raise InvalidInputError(
            f"the table {uri} is not a quarantine: it has no stable row ids. Give another "
            "location, quarantine_uri=..."
        )
    of = table.manifest.config.get(TABLE_KEY, "")
    if table_uri is not None and not _is_same(
        of, table_uri, is_beside=uri == quarantine_uri(table_uri)
    ):
        raise InvalidInputError(
            f"the table {uri} is the quarantine of {of or 'another table'}, not of {table_uri}; "
            "each table needs its own. If the table has moved: "
            f"open_dataset({uri!r}).update_config({{{TABLE_KEY!r}: {_normalized(table_uri)!r}}})"
        )
    return table


def _is_same(recorded: str, uri: str, *, is_beside: bool) -> bool:
    own = _normalized(uri)
    if is_beside:
        return recorded.rpartition("/")[2] == own.rpartition("/")[2]
    return recorded == own


def _normalized(uri: str) -> str:
    """Return the same text for the common spellings of a table's location."""
    text = re.sub(r"^s3[an]:", "s3:", uri) if ":/" in uri else os.path.realpath(uri)
    return text.rstrip("/")


def set_aside(
    uri: str,
    storage_options: Mapping[str, Any],
    bad: pa.Table,
    app_id: str,
    batch_id: int,
    rules: Mapping[str, Any],
    table_uri: str,
    environment: Environment = MACHINE,
) -> str:
    """Commit the bad rows of a batch to the quarantine, once, and return their attempt.

    Args:
        uri: The quarantine; created if it does not exist.
        storage_options: Settings of its store.
        bad: The rows, as `row_checks.BAD_ROWS_SCHEMA`; at least one.
        app_id: The stream.
        batch_id: The batch.
        rules: How the sink would have written them, for a replay.
        table_uri: The table that they are for.
        environment: The clock and randomness.
    """
    rows = _rows_of(bad, app_id, batch_id, rules, environment)
    attempt: str = rows["attempt"][0].as_py()
    known = open_quarantine(uri, storage_options, table_uri)
    if known is None:
        config = {TABLE_KEY: _normalized(table_uri)}
        options = dict(storage_options)
        planned = plan_table(uri, QUARANTINE_SCHEMA, config=config, storage_options=options)
    try:
        _commit(known or planned, rows, environment)
    except TableReplacedError:  # another writer has created it with other columns
        known = open_quarantine(uri, storage_options, table_uri)
        if known is None:
            raise
        _commit(known, rows, environment)
    return attempt


def _commit(table: TableVersion, rows: pa.Table, environment: Environment) -> None:
    app_id, batch_id, attempt = (rows[name][0].as_py() for name in _IDENTITY)
    digest = digest_of(rows.select(_DIGESTED))
    where = _where(app_id, batch_id, attempt)
    # The batch id may have been used before: by another attempt, or by a stream that the table was
    # made to forget. Rows that were committed then, and replayed since, are not these.
    own_name = f"{app_id} {batch_id} {attempt}"
    names = ((app_id, batch_id), (own_name, 0), (f"{own_name} {environment.random_id():016x}", 0))
    for name, number in names:
        batch = MicroBatch(name, number, digest=digest)
        try:
            fragments = write_input(table, rows)
            done = append_fragments(table, fragments, batch, environment=environment)
        except OtherBatchError:
            table = newest_of_same(table)
        else:
            table = done.table
            if done.is_new:
                return
        if table.version and count_rows(table, where):
            return


def _rows_of(
    bad: pa.Table,
    app_id: str,
    batch_id: int,
    rules: Mapping[str, Any],
    environment: Environment,
) -> pa.Table:
    num_rows = bad.num_rows
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=environment.now_nanos() // 1000)
    known: dict[str, Any] = {
        "app_id": [app_id] * num_rows,
        "batch_id": [batch_id] * num_rows,
        "attempt": [""] * num_rows,
        "time": [now] * num_rows,
        "rules": [json.dumps(rules, sort_keys=True)] * num_rows,
        "replay": [None] * num_rows,
    }
    columns = [
        pa.chunked_array([pa.array(known[field.name], field.type)])
        if field.name in known
        else bad[field.name]
        for field in QUARANTINE_SCHEMA
    ]
    rows = pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)
    attempt = digest_of(rows.select(_DIGESTED)).text
    place = QUARANTINE_SCHEMA.get_field_index("attempt")
    attempts = pa.array([attempt] * num_rows, pa.string())
    return rows.set_column(place, QUARANTINE_SCHEMA.field(place), attempts)


def may_have_attempts(table: TableVersion | None, app_id: str, batch_id: int) -> bool:
    """Return whether a quarantine may have rows of a batch that is not committed yet."""
    if table is None:
        return False
    entry = ledger.read_entry(table.manifest.config, app_id)
    return entry is not None and entry.batch_id >= batch_id


def delete_other_attempts(table: TableVersion, app_id: str, batch_id: int, attempt: str) -> None:
    """Delete the rows of a committed batch's other attempts.

    Args:
        table: Any version of the quarantine.
        app_id: The stream.
        batch_id: The batch.
        attempt: The attempt that the table's ledger names; empty if no row was set aside.
    """
    delete(table, f"{_where(app_id, batch_id)} AND attempt <> {_quoted(attempt)}")


def mark_unnamed(table: TableVersion | None, target: TableVersion, app_id: str) -> None:
    """Mark rows of committed batches whose attempts the ledger has not named: usually none.

    Args:
        table: The quarantine; None if there is none.
        target: The table; the batch that is about to be written is not in its ledger.
        app_id: The stream.
    """
    entry = ledger.read_entry(target.manifest.config, app_id)
    here = None if table is None else ledger.read_entry(table.manifest.config, app_id)
    if table is None or entry is None or here is None:
        return
    last, attempt = entry.newest_quarantined or (-1, "")
    if here.batch_id < last or (here.batch_id == last and not _has_others(table, app_id, last)):
        return
    update(
        table,
        {"attempt": _quoted(_UNNAMED)},
        f"app_id = {_quoted(app_id)} AND attempt <> {_quoted(_UNNAMED)} "
        f"AND batch_id <= {entry.batch_id} "
        f"AND (batch_id > {last} OR (batch_id = {last} AND attempt <> {_quoted(attempt)}))",
    )


def _has_others(table: TableVersion, app_id: str, batch_id: int) -> bool:
    """Return whether there was more than one attempt at a batch; see `_commit`."""
    others = ledger.config_key(f"{app_id} {batch_id} ")
    return any(each.startswith(others) for each in table.manifest.config)


def state_of(table: TableVersion, app_id: str, batch_id: int, attempt: str) -> str:
    """Return whether rows in quarantine are the bad rows of a committed batch.

    Args:
        table: The newest version of the table that the batch is for.
        app_id: The stream.
        batch_id: The batch.
        attempt: The attempt.

    Returns:
        READY: They are. UNCOMMITTED: the batch is not committed, and its next attempt decides.
        STALE: it is committed by another attempt, or without one.
    """
    if attempt == _UNNAMED:
        return STALE
    entry = ledger.read_entry(table.manifest.config, app_id)
    if entry is None or entry.batch_id < batch_id:
        return UNCOMMITTED
    last = entry.newest_quarantined
    if last is None or last[0] < batch_id:
        return STALE
    # Rows of other attempts were deleted, or marked, before a later batch was named.
    return READY if last[0] > batch_id or last[1] == attempt else STALE


def _where(app_id: str, batch_id: int, attempt: str | None = None) -> str:
    text = f"app_id = {_quoted(app_id)} AND batch_id = {batch_id}"
    return text if attempt is None else f"{text} AND attempt = {_quoted(attempt)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
