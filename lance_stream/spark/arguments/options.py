"""All options of sources and writers, and the parsing of their values.

Two tables: `_OPTIONS` for reading, `_WRITE_OPTIONS` for writing.

Spark passes options as strings, under lower-cased names. Unknown names and invalid values are
refused, because a user would believe that an ignored option has an effect.

Spark shows the options of views in plans, its UI and event logs, except those whose name or value
contains a word such as "secret". So `secretStorageOptions` are never shown, and `storageOptions`
may hold a secret only together with such a word. Errors show neither.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypeAlias

from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError
from lance_stream.feed.rules import DEDUPLICATION_MODES, EACH_VERSION
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.schema.system_columns import (
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.opening import branch_uri
from lance_stream.snapshot.references import as_branch
from lance_stream.snapshot.timestamps import parse_moment
from lance_stream.spark.arguments.modes import (
    BAD_ROWS,
    BY_KEY,
    OF_CHANGES,
    ONLY_WITH,
    QUARANTINE,
    WRITER_MODES,
    check_one_of,
    evolutions,
)
from lance_stream.storage.locations import check_is_shared
from lance_stream.storage.options.names import is_known
from lance_stream.storage.trust import with_trusted
from lance_stream.write.row_checks import Check, as_checks

LATEST = "latest"

VersionChoice: TypeAlias = int | str | datetime | None
"""A version number, the name of a tag, a timestamp (UTC), or None for the newest version."""


@dataclass(frozen=True)
class SourceOptions:
    """A user's options of a source.

    Attributes:
        uri: The table's location.
        storage_options: Settings of its store.
        columns: The columns to read, in order; None for all.
        filter: A condition in SQL that the rows must meet; None for all.
        with_row_id: Whether the column `_rowid` follows the table's own columns.
        with_row_versions: Whether a row's created-at and last-updated-at versions follow.
        version: The version of the table to read; for batch reads without change feed.
        read_change_feed: Whether to read changes rather than rows.
        starting_version: First version whose changes are read; `"latest"` for future changes
            only; None for a snapshot as inserts, then changes (streams only).
        ending_version: Last version whose changes are read; None for the newest (batches only).
        starting_timestamp: Changes committed at or after this time (UTC) are read.
        ending_timestamp: Changes committed at or before this time are read (batches only).
        deduplication_mode: "none", or "netChanges" for one change per row.
        pre_images: Whether updates include the pre-image.
        compute_updates: Whether an update is returned as such, not as a delete and an insert.
        column_backfills: Whether rows that only got values in a new column count as updated.
        max_versions_per_trigger: Maximum number of versions in a micro-batch.
        max_rows_per_trigger: Approximate maximum number of rows in a micro-batch.
        max_bytes_per_trigger: Approximate maximum bytes of data files that a micro-batch reads.
        fail_on_data_loss: Whether a stream fails if versions that it needs are missing, instead
            of continuing with what is left.
        consumer: The name under which the table stores the stream's progress.
        skip_change_commits: Whether a stream of appended rows skips versions that update or
            delete, instead of failing.
        branch: The branch to read, whose location is then `uri`; None for the main one.
        wait_for_table: Whether a stream waits for a table, or a starting version, that is not
            there yet, instead of failing.
        only_by_tasks: Whether tasks read all rows, also the few that the process that plans could
            read: on a cluster the driver reads no data file.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    with_row_id: bool = False
    with_row_versions: bool = False
    version: VersionChoice = None
    read_change_feed: bool = False
    starting_version: int | str | None = None
    ending_version: int | None = None
    starting_timestamp: datetime | None = None
    ending_timestamp: datetime | None = None
    deduplication_mode: str = EACH_VERSION
    pre_images: bool = True
    compute_updates: bool = True
    column_backfills: bool = True
    max_versions_per_trigger: int | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    consumer: str | None = None
    skip_change_commits: bool = False
    branch: str | None = None
    wait_for_table: bool = False
    only_by_tasks: bool = False

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The system columns that options of their own request."""
        versions = (ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)
        row_id = (ROW_ID,) if self.with_row_id else ()
        return row_id + (versions if self.with_row_versions else ())


@dataclass(frozen=True)
class WriteOptions:
    """A user's options of a writer.

    Attributes:
        uri: The location of the table, which need not exist.
        storage_options: Settings of its store.
        app_id: The app id under which the ledger keeps a stream's batches; None for the streaming
            query's own id.
        late_start: Whether a later batch of a stream than its first one may create the table.
        txn_app_id: The app id under which the ledger keeps a batch write; None for none.
        txn_version: The number of that write; it increases from write to write.
        file_version: File version of the data files of a new table.
        primary_key: The columns of its primary key; None for none.
        schema_evolution: How rows may change the columns: see `row_modes.SCHEMA_EVOLUTIONS`.
        replays_may_differ: Whether a repeated batch may have different rows.
        branch: The branch to write, whose location is then `uri`; None for the main one.
        mode: What the rows mean, as for `lance_sink`; None if Spark's mode says it.
        on: The key columns of an upsert.
        sequence_by: The column that orders rows of one key.
        delete_when: A condition in SQL on an incoming row: whether it deletes.
        except_columns: Columns of the rows that are not stored.
        skip_unchanged: Whether rows whose values stay the same are not rewritten.
        tombstones: How long deletes are remembered; None if they are not.
        when_matched: What a row does if the table has its key; None to update it.
        when_not_matched: What it does if the table lacks its key; None to insert it.
        any_output_mode: Whether to accept an output mode that does not fit the mode.
        expect: The conditions that each row has to meet.
        bad_rows: Whether bad rows are refused or set aside: see `row_modes.BAD_ROWS`.
        quarantine_uri: The location of the quarantine; None for the one beside the table.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    app_id: str | None = None
    late_start: bool = False
    txn_app_id: str | None = None
    txn_version: int | None = None
    file_version: str | None = None
    primary_key: tuple[str, ...] | None = None
    schema_evolution: tuple[str, ...] = ()
    replays_may_differ: bool = False
    branch: str | None = None
    mode: str | None = None
    on: tuple[str, ...] = ()
    sequence_by: str | None = None
    delete_when: str | None = None
    except_columns: tuple[str, ...] = ()
    skip_unchanged: bool = False
    tombstones: timedelta | None = None
    when_matched: str | None = None
    when_not_matched: str | None = None
    any_output_mode: bool = False
    expect: tuple[Check, ...] = ()
    bad_rows: str = "refuse"
    quarantine_uri: str | None = None

    @property
    def is_by_key(self) -> bool:
        """Whether rows of the table are updated by their keys."""
        return self.mode in BY_KEY

    @property
    def sets_aside(self) -> bool:
        """Whether bad rows are set aside, and the others committed."""
        return self.bad_rows == QUARANTINE

    @property
    def quarantine(self) -> str:
        """The location of the table for bad rows."""
        return self.quarantine_uri or quarantine_uri(self.uri)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse a user's options of a source.

    Args:
        options: Names and strings from Spark; names in any case.

    Raises:
        InvalidInputError: A name is unknown, a value is invalid, two options exclude each other,
            or the path is missing.
    """
    options = _for_reading(options)
    values = _read(options, _OPTIONS, _WRITE_OPTIONS, "is for writing, not for reading")
    _join_storage_options(values)
    if "uri" not in values:
        raise InvalidInputError(
            "the path of the table is missing: give it to load(), or as the option `path`. "
            f"{_FORGETFUL}"
        )
    _open_branch(values)
    parsed = SourceOptions(**values)
    _check_together(parsed)
    return parsed


def _for_reading(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without those of a view that only say how INSERT INTO writes to it."""
    by_key = any(name.lower() == "mode" for name in options)
    known = {*_OF_VIEWS, *(_OF_VIEWS_BY_KEY if by_key else ())}
    for_writing = {name: text for name, text in options.items() if name.lower() in known}
    _read(for_writing, _WRITE_OPTIONS, {}, "")  # they must be valid
    return {name: text for name, text in options.items() if name not in for_writing}


_OF_VIEWS = frozenset({"primarykey", "fileversion", "expect"})
_OF_VIEWS_BY_KEY = frozenset(
    {
        "mode",
        "on",
        "sequenceby",
        "deletewhen",
        "exceptcolumns",
        "skipunchanged",
        "tombstones",
        "whenmatched",
        "whennotmatched",
    }
)


def parse_write_options(options: Mapping[str, str], streaming: bool) -> WriteOptions:
    """Parse a user's options of a writer.

    Args:
        options: Names and strings from Spark; names in any case.
        streaming: Whether a stream is written, rather than a batch.

    Raises:
        InvalidInputError: A name is unknown, or belongs to the other kind of writer; a value is
            invalid; one of two options that belong together is missing; or the path is.
    """
    values = _read(options, _WRITE_OPTIONS, _OPTIONS, "is for reading, not for writing")
    _join_storage_options(values)
    if "uri" not in values:
        raise InvalidInputError(
            "the path of the table is missing: give it to save() or start(), or as the option "
            f"`path`. {_FORGETFUL}"
        )
    _open_branch(values)
    parsed = WriteOptions(**values)
    if streaming and (parsed.txn_app_id is not None or parsed.txn_version is not None):
        raise InvalidInputError(
            "txnAppId and txnVersion identify one write of a batch; the batches of a stream have "
            "their own ids: set its app id with the option 'appId'"
        )
    if not streaming and parsed.app_id is not None:
        raise InvalidInputError(
            "the option 'appId' identifies a stream; to write a batch only once, set 'txnAppId' "
            "and 'txnVersion'"
        )
    if (parsed.txn_app_id is None) != (parsed.txn_version is None):
        raise InvalidInputError(
            "txnAppId and txnVersion go together: an app id for the writing program, and a number "
            "that increases from write to write"
        )
    for name in ("anyOutputMode", "lateStart"):
        if not streaming and getattr(parsed, _WRITE_OPTIONS[name.lower()].attribute or ""):
            raise InvalidInputError(f"the option {name!r} belongs to a stream")
    _check_mode(parsed)
    _check_bad_rows(parsed, streaming=streaming)
    return parsed


def _check_bad_rows(options: WriteOptions, *, streaming: bool) -> None:
    """Refuse checks that the mode has no use for, and a quarantine that cannot be kept."""
    if (options.expect or options.sets_aside) and options.mode == "apply_changes":
        name = "badRows" if options.sets_aside else "expect"
        raise InvalidInputError(
            f"the option {name!r} is not for mode=apply_changes: the changes of a feed build on "
            "each other, so those after one that was left out would be applied to rows that they "
            "do not belong to"
        )
    if not options.sets_aside:
        if options.quarantine_uri is not None:
            raise InvalidInputError(
                "the option 'quarantineUri' is the table for rows that are set aside: set "
                "badRows=quarantine, too"
            )
        return
    if not streaming and options.txn_app_id is None:
        raise InvalidInputError(
            "badRows=quarantine commits two tables, and only the number of the write tells which "
            "rows belong together if it is repeated: set 'txnAppId', a name for the writing "
            "program, and 'txnVersion', a number that increases from write to write; or leave "
            "badRows out, and rows that do not fit are refused"
        )
    if options.branch is not None and options.quarantine_uri is None:
        raise InvalidInputError(
            "bad rows of a branch need a location outside of the table: set 'quarantineUri'"
        )
    if options.quarantine.rstrip("/") == options.uri.rstrip("/"):
        raise InvalidInputError(
            f"quarantineUri={options.quarantine} is the table itself; bad rows need a table of "
            "their own"
        )


def _check_mode(options: WriteOptions) -> None:
    """Refuse options that the mode has no use for, and a mode that lacks one."""
    if options.is_by_key and not options.on:
        raise InvalidInputError(
            f"mode={options.mode} needs the key columns that identify a row, in the option 'on'"
        )
    for attribute, every in ONLY_WITH.items():
        modes = [each for each in every if each in WRITER_MODES]
        if getattr(options, attribute) and options.mode not in modes:
            name = next(
                write_option.name
                for write_option in _WRITE_OPTIONS.values()
                if write_option.attribute == attribute
            )
            now = "no mode is set" if options.mode is None else f"the mode is {options.mode}"
            raise InvalidInputError(
                f"the option {name!r} is for the mode {' or '.join(modes)}, but {now}: set the "
                f"option 'mode' to {modes[0]!r}"
            )
    from lance_stream.upsert.incoming import check_can_remember, check_conditions

    check_can_remember(options.tombstones, options.sequence_by, options.delete_when)
    check_conditions(options.when_matched, options.when_not_matched)
    hidden = sorted({*options.on} & {*options.except_columns})
    if hidden:
        raise InvalidInputError(f"the key column {hidden[0]!r} cannot be left out of the table")


_OF_THE_CATALOG = frozenset({"provider", "owner"})
_FORGETFUL = (
    "Spark's own catalog does not pass a table's path on to Python sources, so a table of CREATE "
    "TABLE can be neither read nor written: drop it. Use CREATE TEMPORARY VIEW name USING format "
    "OPTIONS (path '...'); with columns, name (id BIGINT, ...), the first INSERT INTO the view "
    "creates the table"
)


def _read(
    options: Mapping[str, str],
    known: Mapping[str, "_Option"],
    others: Mapping[str, "_Option"],
    what_others_do: str,
) -> dict[str, Any]:
    """Return the parsed values of options, by attribute."""
    values: dict[str, Any] = {}
    for name, text in ((name.lower(), text) for name, text in options.items()):
        if name not in known:
            if name in _OF_THE_CATALOG:
                raise InvalidInputError(_FORGETFUL)
            if name in others:
                raise InvalidInputError(f"the option {others[name].name!r} {what_others_do}")
            if is_known(name):
                raise InvalidInputError(
                    f"{name!r} is a storage option: set all of them as one JSON object in the "
                    "option 'secretStorageOptions', or for all tables of a session by "
                    "register(spark, storage_options={...}) or Spark's own settings "
                    "(spark.hadoop.fs.s3a.access.key, ...)"
                )
            raise InvalidInputError(f"there is no option {name!r}{_hint(name, known)}")
        option = known[name]
        value = option.parse(option.name, text)
        if option.attribute is None:
            continue
        if option.attribute in values:
            raise InvalidInputError(
                "versionAsOf, timestampAsOf and tag each select a version: set one of them"
            )
        values[option.attribute] = value
    return values


def _hint(name: str, known: Mapping[str, "_Option"]) -> str:
    """Return what the user may have meant by an unknown option: a sentence's end."""
    if name in _ELSEWHERE:
        return f": {_ELSEWHERE[name]}"
    near = get_close_matches(name, known, 1)
    if near:
        return f": did you mean {known[near[0]].name!r}?"
    return f"; the options are: {', '.join(sorted(each.name for each in known.values()))}"


_COMPACTED = (
    "Spark ends the process of a commit, so it cannot compact in the background. Use "
    'foreachBatch(lance_sink(path, compact="auto")), or call Dataset.compact() from time to time'
)
_ELSEWHERE: Mapping[str, str] = {
    "version": "the version to read is selected by 'versionAsOf', 'timestampAsOf' or 'tag'",
    "timestamp": "the time to read at is selected by 'timestampAsOf'",
    "mergeschema": "columns that the table lacks are added with schemaEvolution=add_columns",
    "overwriteschema": "mode('overwrite') always replaces the schema with the rows",
    "replacewhere": (
        "replace rows by a condition in two commits, dataset.delete(condition) and an append, or "
        "by key with the options mode=upsert and on=<the key columns>"
    ),
    "partitionoverwritemode": "Lance tables have no partitions",
    "readchangedata": "the change feed is read with readChangeFeed=true",
    "ignorechanges": "the change feed, readChangeFeed=true, contains updates and deletes",
    "ignoredeletes": (
        "versions that update or delete are skipped with skipChangeCommits=true, or read as "
        "changes with readChangeFeed=true"
    ),
    "maxfilespertrigger": "use maxVersionsPerTrigger, maxRowsPerTrigger or maxBytesPerTrigger",
    "compactevery": _COMPACTED,
    "compact": _COMPACTED,
    "createoptions": (
        "create the table first, by lance_stream.create_dataset(path, schema, ...), to choose the "
        "types of its columns"
    ),
}
"""Options of other table formats and of our sink, in lower case, and where their function is."""


def _join_storage_options(values: dict[str, Any]) -> None:
    """Combine the options of the store."""
    secret = values.pop("secret_storage_options", {})
    doubled = secret.keys() & values.get("storage_options", {}).keys()
    if doubled:
        raise InvalidInputError(
            f"the storage option {min(doubled)!r} is set in storageOptions and in "
            "secretStorageOptions: remove it from storageOptions"
        )
    if secret:
        values["storage_options"] = {**values.get("storage_options", {}), **secret}
    if "trusted_locations" in values:
        trusted = values.pop("trusted_locations")
        values["storage_options"] = with_trusted(values.get("storage_options"), trusted)


def _open_branch(values: dict[str, Any]) -> None:
    """Replace the location of a table by that of its branch, if one is named."""
    values["branch"] = as_branch(values.get("branch"))
    values["uri"] = branch_uri(values["uri"], values["branch"])


def check_for_batch(options: SourceOptions) -> None:
    """Refuse options without a meaning for `spark.read`.

    Raises:
        InvalidInputError: An option is for streams only, or for the change feed only.
    """
    for attribute in _OF_STREAMS:
        _refuse(options, attribute, "belongs to a stream: spark.read has no triggers")
    _refuse(options, "skip_change_commits", "is for a stream of appended rows")
    if not options.read_change_feed:
        hint = "belongs to the change feed: set readChangeFeed to true, or use versionAsOf"
        for attribute in (*_ENDS, *_OF_THE_FEED):
            _refuse(options, attribute, hint)
    elif not isinstance(options.starting_version, int) and options.starting_timestamp is None:
        raise InvalidInputError(
            "a batch of the change feed needs the option 'startingVersion', the number of the "
            "first version whose changes are read, or 'startingTimestamp'; 'endingVersion' or "
            "'endingTimestamp' sets the last one, by default the newest"
        )


def check_for_stream(options: SourceOptions) -> None:
    """Refuse options without a meaning for `spark.readStream`.

    Raises:
        InvalidInputError: An option is for batches only, or does not fit the kind of stream.
    """
    _refuse(options, "version", "selects one version, but a stream has no end: use startingVersion")
    for attribute in ("ending_version", "ending_timestamp"):
        _refuse(options, attribute, "ends a batch: a stream has no end")
    if options.read_change_feed:
        _refuse(
            options,
            "skip_change_commits",
            "is for a stream of appended rows; a change feed shows updates and deletes",
        )
    else:  # column_backfills also determines which versions count as appends only
        for attribute in set(_OF_THE_FEED) - {"column_backfills"}:
            _refuse(options, attribute, "belongs to the change feed: set readChangeFeed to true")


_ENDS = ("starting_version", "ending_version", "starting_timestamp", "ending_timestamp")
_OF_THE_FEED = ("deduplication_mode", "pre_images", "compute_updates", "column_backfills")
_OF_STREAMS = (
    "max_versions_per_trigger",
    "max_rows_per_trigger",
    "max_bytes_per_trigger",
    "fail_on_data_loss",
    "consumer",
    "wait_for_table",
)


def _refuse(options: SourceOptions, attribute: str, reason: str) -> None:
    if getattr(options, attribute) != getattr(SourceOptions(options.uri), attribute):
        names = [option.name for option in _OPTIONS.values() if option.attribute == attribute]
        raise InvalidInputError(f"the option {' or '.join(map(repr, names))} {reason}")


def _check_together(options: SourceOptions) -> None:
    if options.version is not None and options.read_change_feed:
        raise InvalidInputError(
            "versionAsOf, timestampAsOf and tag select the version of a table; with readChangeFeed "
            "use startingVersion and endingVersion"
        )
    if options.branch is not None and isinstance(options.version, str):
        raise InvalidInputError(
            "a tag names the branch of its version itself: leave the option 'branch' out"
        )
    for name in ("starting", "ending"):
        if None not in (getattr(options, f"{name}_version"), getattr(options, f"{name}_timestamp")):
            raise InvalidInputError(
                f"{name}Version and {name}Timestamp each set the same end of the interval: set one"
            )
    since, until = options.starting_timestamp, options.ending_timestamp
    if since is not None and until is not None and until < since:
        raise InvalidInputError(
            f"endingTimestamp ({until.isoformat()}) is before startingTimestamp "
            f"({since.isoformat()})"
        )
    start, end = options.starting_version, options.ending_version
    if isinstance(start, int) and end is not None and end < start:
        raise InvalidInputError(f"endingVersion ({end}) is before startingVersion ({start})")


@dataclass(frozen=True)
class _Option:
    name: str
    attribute: str | None
    parse: Callable[[str, str], Any]


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidInputError(f"the option {name!r} is empty")
    return text


def _location(name: str, text: str) -> str:
    check_is_shared(text)
    return _text(name, text)


def _boolean(name: str, text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise InvalidInputError(
            f"the option {name!r} must be true or false, not {text!r}"
        ) from None


def _whole_number(minimum: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        stripped = text.strip()
        if not (stripped.isascii() and stripped.isdigit()) or int(stripped) < minimum:
            raise InvalidInputError(
                f"the option {name!r} must be a whole number from {minimum}, not {text!r}"
            )
        return int(stripped)

    return parse


def _version(name: str, text: str) -> int:
    try:
        return _whole_number(1)(name, text)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}; the version of a tag is read with the option 'tag', that of a time with "
            "'timestampAsOf'"
        ) from None


def _starting_version(name: str, text: str) -> int | str:
    if text.strip().lower() == LATEST:
        return LATEST
    try:
        return _whole_number(0)(name, text)
    except InvalidInputError:
        raise InvalidInputError(
            f"the option {name!r} must be a whole number from 0, or {LATEST!r}, not {text!r}"
        ) from None


def _timestamp(name: str, text: str) -> datetime:
    try:
        return parse_moment(text)
    except ValueError:
        raise InvalidInputError(
            f"the option {name!r} must be a time in ISO 8601 format, for example "
            f"2026-11-05T14:00:00+01:00 (UTC if no zone is given), not {text!r}"
        ) from None


def _columns(name: str, text: str) -> tuple[str, ...]:
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            names = json.loads(stripped)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise InvalidInputError(
                f"the option {name!r} must be names separated by commas, or a JSON list of names, "
                f"not {text!r}"
            )
        columns = tuple(names)
    else:
        columns = tuple(each.strip() for each in stripped.split(","))
    if not columns or not all(columns):
        raise InvalidInputError(f"the option {name!r} has an empty name in {text!r}")
    return columns


_SPARK_HIDES = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""The default of Spark's `spark.redaction.regex`, which Spark applies to names and values."""

_HOLDS_A_SECRET = re.compile(
    r'"[a-z_]*(account_key|access_key|master_key|sas_key|connection_string|credential)"\s*:'
    r"|://[^/@\"]*:[^/@\"]*@",
    re.IGNORECASE,
)
"""Secrets in a JSON object without those words: by the names of their options, or in a URI."""


def _age(name: str, text: str) -> timedelta:
    try:
        return parse_age(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"the option {name!r}: {error}") from None


def _mode(name: str, text: str) -> str:
    mode = text.strip().lower()
    if mode in OF_CHANGES:
        raise InvalidInputError(
            f"the option {name!r} cannot be {mode!r}: this mode is one of the sink. Use "
            f".foreachBatch(lance_sink(uri, mode={mode!r}, keys=[...], sequence_by=...))"
        )
    check_one_of(f"the option {name!r}", mode, WRITER_MODES)
    return mode


def _locations(name: str, text: str) -> list[str]:
    """Parse locations: a JSON list of them, or a single one."""
    if not text.lstrip().startswith("["):
        return [text]
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return value
    raise InvalidInputError(
        f"the option {name!r} must be a location or a JSON list of them, such as "
        f'["s3://bucket/blobs"], not {text!r}'
    )


def _secret_json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInputError(
            f'the option {name!r} must be a JSON object, such as {{"aws_region": "eu-west-1"}}; '
            "its value may be secret and is not shown here"
        )
    return value


def _json_object(name: str, text: str) -> dict[str, Any]:
    value = _secret_json_object(name, text)
    if _HOLDS_A_SECRET.search(text) and not _SPARK_HIDES.search(text):
        raise InvalidInputError(
            f"the option {name!r} contains a secret that Spark would show in plans and in its UI. "
            "Spark hides options with 'secret' in their name: use the option "
            "'secretStorageOptions' instead, or register(spark, storage_options={...}), or Spark's "
            "own settings"
        )
    return value


def _expect(name: str, text: str) -> tuple[Check, ...]:
    """Parse conditions: one, a JSON list of them, or a JSON object with a name for each."""
    value: object = text
    if text.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, list | dict) or not value:
            raise InvalidInputError(
                f"the option {name!r} must be a condition, a JSON list of conditions, or a JSON "
                f'object with a name for each, such as {{"price": "price >= 0"}}, not {text!r:.200}'
            )
    try:
        return as_checks(value)
    except InvalidInputError as error:
        raise InvalidInputError(f"the option {name!r}: {error}") from None


def _schema_evolution(name: str, text: str) -> tuple[str, ...]:
    try:
        return evolutions(_columns(name, text.lower()))
    except InvalidInputError as error:
        raise InvalidInputError(f"the option {name!r}: {error}") from None


def _one_path(name: str, text: str) -> None:
    raise InvalidInputError(f"a table has one path, but load() was given {name}: {text}")


def _one_of(*choices: str) -> Callable[[str, str], str]:
    by_lower = {choice.lower(): choice for choice in choices}

    def parse(name: str, text: str) -> str:
        if text.strip().lower() not in by_lower:
            raise InvalidInputError(
                f"the option {name!r} must be {' or '.join(choices)}, not {text!r}"
            )
        return by_lower[text.strip().lower()]

    return parse


def parse_deduplication_mode(text: str) -> str:
    """Return the feed's name of a mode.

    Raises:
        InvalidInputError: There is no such mode.
    """
    return _DEDUPLICATION_MODE("deduplicationMode", text)


_DEDUPLICATION_MODE = _one_of(*DEDUPLICATION_MODES)


def _by_name(*options: _Option) -> dict[str, _Option]:
    return {option.name.lower(): option for option in options}


_OPTIONS = _by_name(
    _Option("path", "uri", _location),
    _Option("paths", None, _one_path),
    _Option("storageOptions", "storage_options", _json_object),
    _Option("secretStorageOptions", "secret_storage_options", _secret_json_object),
    _Option("trustedLocations", "trusted_locations", _locations),
    _Option("columns", "columns", _columns),
    _Option("filter", "filter", _text),
    _Option("withRowId", "with_row_id", _boolean),
    _Option("withRowVersions", "with_row_versions", _boolean),
    _Option("versionAsOf", "version", _version),
    _Option("timestampAsOf", "version", _timestamp),
    _Option("tag", "version", _text),
    _Option("branch", "branch", _text),
    _Option("readChangeFeed", "read_change_feed", _boolean),
    _Option("startingVersion", "starting_version", _starting_version),
    _Option("endingVersion", "ending_version", _whole_number(1)),
    _Option("maxVersionsPerTrigger", "max_versions_per_trigger", _whole_number(1)),
    _Option("skipChangeCommits", "skip_change_commits", _boolean),
    _Option("startingTimestamp", "starting_timestamp", _timestamp),
    _Option("endingTimestamp", "ending_timestamp", _timestamp),
    _Option("deduplicationMode", "deduplication_mode", _DEDUPLICATION_MODE),
    _Option("preImages", "pre_images", _boolean),
    _Option("computeUpdates", "compute_updates", _boolean),
    _Option("columnBackfills", "column_backfills", _boolean),
    _Option("maxRowsPerTrigger", "max_rows_per_trigger", _whole_number(1)),
    _Option("maxBytesPerTrigger", "max_bytes_per_trigger", _whole_number(1)),
    _Option("failOnDataLoss", "fail_on_data_loss", _boolean),
    _Option("consumer", "consumer", _text),
    _Option("waitForTable", "wait_for_table", _boolean),
)

_WRITE_OPTIONS = _by_name(
    _Option("path", "uri", _location),
    _Option("storageOptions", "storage_options", _json_object),
    _Option("secretStorageOptions", "secret_storage_options", _secret_json_object),
    _Option("trustedLocations", "trusted_locations", _locations),
    _Option("branch", "branch", _text),
    _Option("appId", "app_id", _text),
    _Option("lateStart", "late_start", _boolean),
    _Option("replaysMayDiffer", "replays_may_differ", _boolean),
    _Option("txnAppId", "txn_app_id", _text),
    _Option("txnVersion", "txn_version", _whole_number(0)),
    _Option("fileVersion", "file_version", _text),
    _Option("primaryKey", "primary_key", _columns),
    _Option("schemaEvolution", "schema_evolution", _schema_evolution),
    _Option("mode", "mode", _mode),
    _Option("on", "on", _columns),
    _Option("sequenceBy", "sequence_by", _text),
    _Option("deleteWhen", "delete_when", _text),
    _Option("exceptColumns", "except_columns", _columns),
    _Option("skipUnchanged", "skip_unchanged", _boolean),
    _Option("tombstones", "tombstones", _age),
    _Option("whenMatched", "when_matched", _text),
    _Option("whenNotMatched", "when_not_matched", _text),
    _Option("anyOutputMode", "any_output_mode", _boolean),
    _Option("expect", "expect", _expect),
    _Option("badRows", "bad_rows", _one_of(*BAD_ROWS)),
    _Option("quarantineUri", "quarantine_uri", _location),
    # options of Spark, which it passes on
    _Option("checkpointLocation", None, _text),
    _Option("queryName", None, _text),
)
