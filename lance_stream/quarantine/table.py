"""The quarantine of a table: its location, its columns, and its valid rows.

Each row has the app id, the batch id and the *attempt* that it belongs to: the digest of the bad
rows of a batch and of their reasons, as one run of the sink found them. The table's ledger names
the attempt that counts (`state_of`). `quarantine_writer` says how they get here.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
)
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries

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

TABLE_KEY: Final = "lance_stream.quarantine_of"
"""The config key of the location of the table whose quarantine it is."""

UNNAMED: Final = "unnamed"
"""The attempt of rows that no commit of the table has named, or ever will."""

READY: Final = "ready"
UNCOMMITTED: Final = "uncommitted"
STALE: Final = "stale"


def quarantine_uri(uri: str | os.PathLike[str]) -> str:
    """Return the location of a table's quarantine: next to it, `orders_quarantine.lance`."""
    text, question, query = os.fspath(uri).partition("?")
    return f"{text.rstrip('/').removesuffix('.lance')}_quarantine.lance{question}{query}"


def open_quarantine(
    uri: str, storage_options: Mapping[str, Any], table_uri: str | None = None
) -> TableVersion | None:
    """Return the newest version of a quarantine; None if it does not exist yet.

    Args:
        uri: Its location.
        storage_options: Settings of its store.
        table_uri: The table whose quarantine it has to be; None to open any. If it is beside the
            table, only the table's name counts: both may have been moved together.

    Raises:
        InvalidInputError: It is another table, or the quarantine of another table.
    """
    try:
        table = open_newest(uri, storage_options=dict(storage_options))
    except NotFoundError:
        return None
    columns = {field.name: field.type for field in table.arrow_schema}
    for expected in QUARANTINE_SCHEMA:
        if columns.get(expected.name) != expected.type:
            problem = "is missing" if expected.name not in columns else "has another type"
            raise InvalidInputError(
                f"the table {uri} is not a quarantine: the column {expected.name!r} {problem}. "
                "Use another location: bad rows need a separate table"
            )
    if not table.has_stable_row_ids:
        raise InvalidInputError(
            f"the table {uri} is not a quarantine: it has no stable row ids. Use another location"
        )
    of = table.manifest.config.get(TABLE_KEY, "")
    if table_uri is not None and not _is_same(
        of, table_uri, is_derived=uri == quarantine_uri(table_uri)
    ):
        raise InvalidInputError(
            f"the table {uri} is the quarantine of {of or 'another table'}, not of {table_uri}; "
            "every table needs its own. If the table has moved: "
            f"open_dataset({uri!r}).update_config({{{TABLE_KEY!r}: {normalized(table_uri)!r}}})"
        )
    return table


def _is_same(recorded: str, uri: str, *, is_derived: bool) -> bool:
    normalized_uri = normalized(uri)
    if is_derived:
        return recorded.rpartition("/")[2] == normalized_uri.rpartition("/")[2]
    return recorded == normalized_uri


def normalized(uri: str) -> str:
    """Return the same text for the common spellings of a table's location."""
    text = re.sub(r"^s3[an]:", "s3:", uri) if ":/" in uri else os.path.realpath(uri)
    return text.rstrip("/")


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
    if attempt == UNNAMED or not app_id:  # no stream is without a name: another program's rows
        return STALE
    entry = ledger_entries.read_entry(table.manifest.config, app_id)
    if entry is None or entry.batch_id < batch_id:
        return UNCOMMITTED
    last = entry.newest_quarantined
    if last is None or last[0] < batch_id:
        return STALE
    # Rows of other attempts were deleted, or marked, before a later batch was named.
    return READY if last[0] > batch_id or last[1] == attempt else STALE
