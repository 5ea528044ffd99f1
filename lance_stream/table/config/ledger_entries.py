"""The ledger: which micro-batches of which streams a table contains.

A streaming query numbers its micro-batches from 0, and repeats a batch under the same number if it
does not know whether the sink has committed it. For each stream (*app id*), the table's config has
an entry for the newest committed batch:

    key      lance_stream.ledger.<app id, percent-encoded>
    value    {"batch": 41, "query": "<query id>", "version": 97,     JSON
              "rows": 50000, "digest": "<32 hex digits>", "rules": "<16 hex digits>",
              "quarantined": "<32 hex digits>",
              "recent": [[40, 96, 50000, "<digest>", ""], ...]}

The entry is set in the same commit as the batch's rows, and copied from manifest to manifest: old
versions are not needed to find it, and may be cleaned up. It is checked before a batch is written,
and again in every commit attempt.

`rows` and `digest` identify the batch's rows, and `rules` the rules by which they were applied, so
that a replay is distinguished from other rows under the same batch id. `recent` has the same for
earlier batches, newest first (`MAX_RECENT`); its rules are "" if they are those of the entry, and
null if unknown. Entries of early releases have none of the four. `quarantined` names the file with
the bad rows of the newest batch that had any (see `quarantine.quarantine_writer`).

If a stream has had no batch for a long time (`MAX_SILENT_VERSIONS`), `recent` is removed from its
entry: a table may have thousands of streams, and every manifest has all of their entries.

Only a restore by another program reverts an entry, since it also restores the older version's
config. The versions between the entry's `version` and the newest one are then searched for later
batches: see `ledger.foreign_restores`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeGuard
from urllib.parse import quote, unquote

from lance_stream.errors import CorruptDataError, InvalidInputError

PREFIX = "lance_stream.ledger."
"""The prefix of the config keys of all entries."""

MAX_BATCH_ID = (1 << 63) - 1
"""The largest batch id."""

_MAX_SHORTENED = 64
# Matches only the key of an entry: JSON escapes quotes within values.
_VERSION = re.compile(r'"version": (\d+)')
_QUARANTINED = re.compile(r'"quarantined": "([0-9a-f]{32})"')

MAX_RECENT = 8
"""The number of earlier batches in an entry; older manifests have still earlier ones."""

MAX_SILENT_VERSIONS = 1000
"""After this many versions without a batch, an entry no longer lists earlier batches."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The newest committed micro-batch of a stream.

    Attributes:
        batch_id: The batch's number.
        query_id: The streaming query's id, which a new checkpoint changes; empty if the batch did
            not come from a query.
        version: The version that committed it; None if unknown.
        num_rows: The number of rows of the batch; None if unknown.
        digest: The digest of its rows, 32 hexadecimal digits; empty if unknown.
        rules: A fingerprint of the rules by which they were applied; empty if unknown.
        recent: The batches of the stream before this one, newest first; at most `MAX_RECENT`.
        quarantined: The file with the bad rows of the newest batch, up to this one, that had any;
            empty if none had.
    """

    batch_id: int
    query_id: str = ""
    version: int | None = None
    num_rows: int | None = None
    digest: str = ""
    rules: str = ""
    recent: tuple["LedgerEntry", ...] = ()
    quarantined: str = ""

    def before(self) -> tuple["LedgerEntry", ...]:
        """Return the earlier batches for the entry of the next batch."""
        identity = replace(self, query_id="", recent=(), quarantined="")
        return (identity, *self.recent)[:MAX_RECENT]


def read_entry(config: Mapping[str, str], app_id: str) -> LedgerEntry | None:
    """Return the entry of a stream, or None.

    Raises:
        CorruptDataError: An entry is invalid.
        InvalidInputError: The app id is empty, or not valid text.
    """
    key = config_key(app_id)
    return _parse_entry(key, config[key]) if key in config else None


def read_entries(config: Mapping[str, str]) -> dict[str, LedgerEntry]:
    """Return the entries of all streams, by app id.

    Raises:
        CorruptDataError: An entry is invalid.
    """
    return {
        unquote(key.removeprefix(PREFIX)): _parse_entry(key, value)
        for key, value in config.items()
        if key.startswith(PREFIX)
    }


def read_entries_of_query(config: Mapping[str, str], query_id: str) -> dict[str, LedgerEntry]:
    """Return the entries that a streaming query wrote, by app id.

    Entries whose text does not contain the query's id are not parsed: a table may have thousands,
    and a damaged entry of another stream must not fail this one.

    Raises:
        CorruptDataError: An entry with the query's id is invalid.
    """
    text = json.dumps(query_id)
    entries = {
        unquote(key.removeprefix(PREFIX)): _parse_entry(key, value)
        for key, value in config.items()
        if key.startswith(PREFIX) and text in value
    }
    return {app_id: entry for app_id, entry in entries.items() if entry.query_id == query_id}


def quarantined_files(config: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the files with bad rows that the entries name, without parsing them."""
    for key, value in config.items():
        if key.startswith(PREFIX) and (match := _QUARANTINED.search(value)):
            yield match[1]


def config_entries(app_id: str, entry: LedgerEntry) -> dict[str, str]:
    """Return the config entries for a committed batch.

    Raises:
        InvalidInputError: The app id is empty, or not valid text.
    """
    value: dict[str, Any] = {"batch": entry.batch_id, "query": entry.query_id}
    if entry.version is not None:
        value["version"] = entry.version
    if entry.num_rows is not None:
        value["rows"] = entry.num_rows
    for name in ("digest", "rules", "quarantined"):
        if getattr(entry, name):
            value[name] = getattr(entry, name)
    text = json.dumps(value)
    if entry.recent:
        recent = [
            [batch.batch_id, batch.version, batch.num_rows, batch.digest, _rules_in(entry, batch)]
            for batch in entry.recent
        ]
        text = f'{text[:-1]}, "recent": {json.dumps(recent, separators=(",", ":"))}}}'
    return {config_key(app_id): text}


def _rules_in(entry: LedgerEntry, recent: LedgerEntry) -> str | None:
    """Return the rules of an earlier batch as an entry's text has them."""
    return "" if recent.rules == entry.rules else recent.rules or None


def silent_entries(config: Mapping[str, str], version: int) -> dict[str, str]:
    """Return the entries of streams without a batch for a long time, without `recent`.

    Only entries that would change are parsed, and only a few per commit. Invalid entries are
    skipped.

    Args:
        config: The config of the newest version.
        version: The version that is created.
    """
    shortened: dict[str, str] = {}
    for key, value in config.items():
        if not key.startswith(PREFIX) or '"recent"' not in value:
            continue
        match = _VERSION.search(value)
        if match is not None and _is_long_ago(int(match[1]), version):
            with suppress(CorruptDataError, InvalidInputError):
                entry = replace(_parse_entry(key, value), recent=())
                shortened |= config_entries(unquote(key.removeprefix(PREFIX)), entry)
        if len(shortened) == _MAX_SHORTENED:
            break
    return shortened


def is_silent(entry: LedgerEntry, version: int) -> bool:
    """Return whether a stream has had no batch for `MAX_SILENT_VERSIONS` versions."""
    return entry.version is not None and _is_long_ago(entry.version, version)


def _is_long_ago(entry_version: int, version: int) -> bool:
    return version - entry_version > MAX_SILENT_VERSIONS


def newest_entries(config: Mapping[str, str], newest: Mapping[str, str]) -> dict[str, str]:
    """Return the ledger after a restore: for each stream, the newer of two entries.

    Args:
        config: The config of the restored version.
        newest: The config of the newest version.

    Returns:
        The config entries of the ledger, without others.

    Raises:
        CorruptDataError: An entry is invalid.
    """
    merged = {key: value for key, value in newest.items() if key.startswith(PREFIX)}
    for key, value in config.items():
        if key.startswith(PREFIX):
            current = merged.get(key)
            if (
                current is None
                or _parse_entry(key, current).batch_id < _parse_entry(key, value).batch_id
            ):
                merged[key] = value
    return merged


def config_key(app_id: str) -> str:
    """Return the config key of a stream's entry, which is printable ASCII.

    Raises:
        InvalidInputError: The app id is empty, or not valid text.
    """
    if not app_id:
        raise InvalidInputError("the app id of a stream is empty")
    try:
        return PREFIX + quote(app_id, safe="")
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the app id {app_id!r} is not valid text: {error}") from error


def _parse_entry(key: str, value: str) -> LedgerEntry:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"the config entry {key!r} is not JSON: {value[:200]!r}") from error
    if isinstance(parsed, dict):
        recent = parsed.get("recent", [])
        names = ("batch", "query", "version", "rows", "digest", "rules")
        entry = _entry_of(*(parsed.get(name) for name in names))
        if entry is not None and isinstance(recent, list):
            earlier = tuple(_recent_of(batch, entry.rules) for batch in recent)
            quarantined = parsed.get("quarantined", "")
            if all(earlier) and isinstance(quarantined, str):
                return replace(entry, recent=tuple(filter(None, earlier)), quarantined=quarantined)
    raise CorruptDataError(
        f"the config entry {key!r} is not a ledger entry: {value[:200]!r}. If another program set "
        "it, remove it from the table's config"
    )


def _entry_of(
    batch: object, query: object, version: object, rows: object, digest: object, rules: object
) -> LedgerEntry | None:
    """Return an entry from JSON values; None if they are invalid."""
    texts = [query or "", digest or "", rules or ""]
    numbers = [number for number in (version, rows) if number is not None]
    if not _is_number(batch) or not all(map(_is_number, numbers)):
        return None
    if not all(isinstance(text, str) for text in texts):
        return None
    return LedgerEntry(
        batch,
        str(texts[0]),
        version if _is_number(version) else None,
        rows if _is_number(rows) else None,
        str(texts[1]),
        str(texts[2]),
    )


def _recent_of(values: object, rules: str) -> LedgerEntry | None:
    """Return an earlier batch from JSON values; None if they are invalid.

    Args:
        values: The values.
        rules: The rules of the newest batch.
    """
    if not isinstance(values, list) or len(values) != 5:
        return None
    batch, version, rows, digest, batch_rules = values
    return _entry_of(batch, "", version, rows, digest, rules if batch_rules == "" else batch_rules)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_BATCH_ID
