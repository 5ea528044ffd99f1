"""The quarantine of a table: its location and its columns."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
)
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.references import branch_uri
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.locations import text_of
from lance_stream.storage.options.names import as_options

QUARANTINE_SCHEMA: Final = pa.schema(
    [
        pa.field("app_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("stale", pa.bool_(), nullable=False),
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
"""The stream and its batch; whether the row belongs to a previous table at the location, so that it
is never replayed; when and why it was quarantined; the row (see `write.rows_as_json`); whether it
deletes its key; the sink's rules, as JSON; the replay that is moving it to the table."""

TABLE_KEY: Final = "lance_stream.quarantine_of"
"""The config key for the location of the table to which the quarantine belongs."""

_PUBLISHED: Final = "lance_stream.quarantined."


def published_key(app_id: str) -> str:
    """Return the config key of the last file that a stream has published in a quarantine."""
    return _PUBLISHED + quote(app_id, safe="")


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
        table_uri: The table to which the quarantine must belong; None to open any. If the
            quarantine is next to the table, only the table's name is compared, since both may have
            been moved together.

    Raises:
        InvalidInputError: The location has a table that is not a quarantine, or the quarantine of
            another table.
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
                "Choose another location: bad rows need a separate table"
            )
    if not table.has_stable_row_ids:
        raise InvalidInputError(
            f"the table {uri} is not a quarantine: it has no stable row ids. Choose another "
            "location"
        )
    source = table.manifest.config.get(TABLE_KEY, "")
    if table_uri is not None and not _is_same(
        source, table_uri, is_derived=uri == quarantine_uri(table_uri)
    ):
        raise InvalidInputError(
            f"the table {uri} is the quarantine of {source or 'another table'}, not of "
            f"{table_uri}; every table needs a separate one. If the table has moved: "
            f"open_dataset({uri!r}).update_config({{{TABLE_KEY!r}: {normalized(table_uri)!r}}})"
        )
    return table


def open_both(
    uri: str | os.PathLike[str],
    branch: str | None,
    quarantine: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[TableVersion, TableVersion | None, str]:
    """Return a table, its quarantine, which is None if it does not exist yet, and its location.

    Args:
        uri: The table's location.
        branch: The branch of the table; None for the main branch.
        quarantine: The location of the quarantine; None for the default, next to the table.
        storage_options: Settings of the store.

    Raises:
        InvalidInputError: An argument is invalid; there is another table at the quarantine's
            location; the table is itself a quarantine; or the location of a branch's quarantine is
            missing.
    """
    options = as_options(storage_options)
    uri = text_of(uri)
    table_uri = branch_uri(uri, branch)
    location = quarantine_uri(table_uri) if quarantine is None else text_of(quarantine)
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


def _is_same(recorded: str, uri: str, *, is_derived: bool) -> bool:
    normalized_uri = normalized(uri)
    if is_derived:
        return recorded.rpartition("/")[2] == normalized_uri.rpartition("/")[2]
    return recorded == normalized_uri


def normalized(uri: str) -> str:
    """Return a normal form, the same for all common spellings of a table's location."""
    text = re.sub(r"^s3[an]:", "s3:", uri) if ":/" in uri else os.path.realpath(uri)
    return text.rstrip("/")
