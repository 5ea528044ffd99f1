"""The options of a reader: the table `ReaderOptions`, and which readers accept each option."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from lance_stream.errors import InvalidInputError
from lance_stream.feed.rules import DEDUPLICATION_MODES, NO_DEDUPLICATION
from lance_stream.schema.system_columns import (
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.references import as_branch, branch_uri
from lance_stream.spark.arguments.option_values import (
    LATEST,
    boolean,
    columns,
    location,
    one_of,
    one_path,
    size_bytes,
    starting_version,
    table_id,
    text,
    timestamp,
    version,
    whole_number,
)
from lance_stream.spark.arguments.table import (
    Option,
    argument,
    check_callers,
    locate_named,
    options_of,
    parse_options,
    storage_options_argument,
)
from lance_stream.spark.arguments.unknown_options import NO_PATH, refuse_unknown
from lance_stream.storage.options.names import as_options

VersionChoice: TypeAlias = int | str | datetime | None
"""A version number, the name of a tag, a timestamp (UTC), or None for the newest version."""

LOAD: Final = "load"
CHANGES: Final = "feed, batch"
APPENDS: Final = "appended rows, stream"
CHANGE_STREAM: Final = "feed, stream"

CALLERS: Final = (LOAD, CHANGES, APPENDS, CHANGE_STREAM)
"""The ways to read."""

_STREAMS: Final = (APPENDS, CHANGE_STREAM)
_FEED: Final = (CHANGES, CHANGE_STREAM)
_OF_STREAMS: Final[Mapping[str, Any]] = {
    "callers": _STREAMS,
    "reason": "belongs to a stream: spark.read has no triggers",
}
_OF_THE_FEED: Final[Mapping[str, Any]] = {
    "callers": _FEED,
    "reason": "belongs to the change feed: set readChangeFeed to true",
}
_START: Final[Mapping[str, Any]] = {
    "callers": (CHANGES, *_STREAMS),
    "reason": "belongs to the change feed: set readChangeFeed to true, or use versionAsOf",
}
_END: Final[Mapping[str, Any]] = {
    "callers": (CHANGES,),
    "reason": "ends a batch of the change feed: set readChangeFeed to true; a stream has no end",
}

DEDUPLICATION_MODE: Final = Option("deduplicationMode", one_of(*DEDUPLICATION_MODES))


@dataclass(frozen=True)
class ReaderOptions:
    """A user's options of a reader.

    `only_by_tasks` is no option: whether tasks read all rows, also the few that the process that
    plans could read; on a cluster the driver reads no data file.
    """

    uri: str = argument(
        "The location of the table; the argument of `load`.", Option("path", location)
    )
    storage_options: Mapping[str, Any] = storage_options_argument(
        lambda _called, value: as_options(value)
    )
    table_id: tuple[str, ...] | None = argument(
        "The name of the table in the Lance namespace of the session's settings, as in db.events; "
        "instead of the path.",
        Option("table", table_id),
        default=None,
    )
    columns: tuple[str, ...] | None = argument(
        "The columns to read, in order; by default all. Row ids, row versions and, of the feed, "
        "change columns follow the table's own columns.",
        Option("columns", columns),
        default=None,
    )
    filter: str | None = argument(
        "A condition in SQL that the rows must meet; by default all do.",
        Option("filter", text),
        default=None,
    )
    with_row_id: bool = argument(
        "Whether the column `_rowid` follows the table's own columns.",
        Option("withRowId", boolean),
        default=False,
    )
    with_row_versions: bool = argument(
        "Whether a row's created-at and last-updated-at versions follow.",
        Option("withRowVersions", boolean),
        default=False,
    )
    version: VersionChoice = argument(
        "The version to read.",
        Option("versionAsOf", version, "The number of the version to read; by default the newest."),
        Option(
            "timestampAsOf",
            timestamp,
            "Reads the newest version committed at or before this time.",
        ),
        Option("tag", text, "Reads the version that the tag names."),
        default=None,
        callers=(LOAD,),
        reason="selects the version of a table: a stream and the change feed have startingVersion",
    )
    branch: str | None = argument(
        "The branch to read, which has to exist; by default the main one.",
        Option("branch", text),
        default=None,
        check=lambda _called, value: as_branch(value),
    )
    read_change_feed: bool = argument(
        "Whether to read changes rather than rows.",
        Option("readChangeFeed", boolean),
        default=False,
        callers=_FEED,
    )
    starting_version: int | str | None = argument(
        'The first version whose changes are read; `"latest"` for future changes only; by default '
        "a stream begins with a snapshot as inserts.",
        Option("startingVersion", starting_version),
        default=None,
        **_START,
    )
    ending_version: int | None = argument(
        "The last version whose changes are read; by default the newest.",
        Option("endingVersion", whole_number(1)),
        default=None,
        **_END,
    )
    starting_timestamp: datetime | None = argument(
        "Changes committed at or after this time (UTC) are read.",
        Option("startingTimestamp", timestamp),
        default=None,
        **_START,
    )
    ending_timestamp: datetime | None = argument(
        "Changes committed at or before this time (UTC) are read.",
        Option("endingTimestamp", timestamp),
        default=None,
        **_END,
    )
    deduplication_mode: str = argument(
        '"none", or "netChanges" for one change per row.',
        DEDUPLICATION_MODE,
        default=NO_DEDUPLICATION,
        **_OF_THE_FEED,
    )
    pre_images: bool = argument(
        "Whether updates include the pre-image.",
        Option("preImages", boolean),
        default=True,
        **_OF_THE_FEED,
    )
    compute_updates: bool = argument(
        "Whether an update is returned as such, not as a delete and an insert.",
        Option("computeUpdates", boolean),
        default=True,
        **_OF_THE_FEED,
    )
    column_backfills: bool = argument(
        "Whether rows that only got values in a new column count as updated.",
        Option("columnBackfills", boolean),
        default=True,
        # it also says which versions only append
        callers=(*_FEED, APPENDS),
        reason="belongs to the change feed: set readChangeFeed to true",
    )
    max_versions_per_trigger: int | None = argument(
        "The maximum number of versions in a micro-batch.",
        Option("maxVersionsPerTrigger", whole_number(1)),
        default=None,
        **_OF_STREAMS,
    )
    max_rows_per_trigger: int | None = argument(
        "The approximate maximum number of rows in a micro-batch.",
        Option("maxRowsPerTrigger", whole_number(1)),
        default=None,
        **_OF_STREAMS,
    )
    max_bytes_per_trigger: int | None = argument(
        "The approximate maximum of bytes of data files that a micro-batch reads.",
        Option("maxBytesPerTrigger", size_bytes),
        default=None,
        **_OF_STREAMS,
    )
    fail_on_data_loss: bool = argument(
        "Whether a stream fails if versions that it needs are missing, instead of continuing "
        "without them.",
        Option("failOnDataLoss", boolean),
        default=True,
        **_OF_STREAMS,
    )
    consumer: str | None = argument(
        "The name under which the table stores the stream's progress.",
        Option("consumer", text),
        default=None,
        **_OF_STREAMS,
    )
    skip_change_commits: bool = argument(
        "Whether a stream of appended rows skips versions that update or delete, instead of "
        "failing.",
        Option("skipChangeCommits", boolean),
        default=False,
        callers=(APPENDS,),
        reason="is for a stream of appended rows; a change feed shows updates and deletes",
    )
    wait_for_table: bool = argument(
        "Whether a stream waits for a table, or a starting version, that does not exist yet, "
        "instead of failing.",
        Option("waitForTable", boolean),
        default=False,
        **_OF_STREAMS,
    )
    only_by_tasks: bool = False

    def __post_init__(self) -> None:
        """Check options that depend on each other.

        Raises:
            InvalidInputError: Two options exclude each other, or an interval ends before it starts.
        """
        _check_together(self)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The system columns that are requested by separate options."""
        versions = (ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)
        row_id = (ROW_ID,) if self.with_row_id else ()
        return row_id + (versions if self.with_row_versions else ())


def parse_reader_options(
    options: Mapping[str, str], namespace: Mapping[str, str] | None = None
) -> ReaderOptions:
    """Parse a user's options of a reader.

    Args:
        options: Names and texts from Spark; names in any case.
        namespace: The namespace of the option `table`.

    Raises:
        InvalidInputError: A name is unknown, a value is invalid, two options exclude each other,
            or the path is missing.
        LanceStreamError: The namespace has no such table, or did not answer.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    if "paths" in lowered:
        one_path("paths", lowered["paths"])
    others = lowered.keys() - options_of(ReaderOptions).keys()
    if others:
        from lance_stream.spark.arguments.writer_arguments import (
            WriterArguments,
            without_options_of_views,
        )

        lowered = without_options_of_views(lowered)
        refuse_unknown(lowered, ReaderOptions, WriterArguments, "is for writing, not for reading")
    values = locate_named(parse_options(ReaderOptions, lowered), namespace, creates=False)
    if "uri" not in values:
        raise InvalidInputError(NO_PATH.format("load()"))
    values["uri"] = branch_uri(values["uri"], values.get("branch"))
    return ReaderOptions(**values)


def parse_deduplication_mode(text: str) -> str:
    """Return the feed's name of a mode.

    Raises:
        InvalidInputError: There is no such mode.
    """
    return str(DEDUPLICATION_MODE.value(text))


def check_for_batch(options: ReaderOptions) -> None:
    """Refuse options without a meaning for `spark.read`.

    Raises:
        InvalidInputError: An option is for streams only, or for the change feed only.
    """
    check_callers(options, CHANGES if options.read_change_feed else LOAD)
    if options.starting_version == LATEST:
        raise InvalidInputError(
            "startingVersion=latest begins with future changes, which belong to a stream: a batch "
            "needs the number of the first version whose changes are read. That of the newest is "
            "SELECT max(version) FROM lance_history(path)"
        )
    has_start = options.starting_version is not None or options.starting_timestamp is not None
    if options.read_change_feed and not has_start:
        raise InvalidInputError(
            "a batch of the change feed needs the option 'startingVersion', the number of the "
            "first version whose changes are read, or 'startingTimestamp'; 'endingVersion' or "
            "'endingTimestamp' sets the last one, by default the newest"
        )


def check_for_stream(options: ReaderOptions) -> None:
    """Refuse options without a meaning for `spark.readStream`.

    Raises:
        InvalidInputError: An option is for batches only, or does not fit the kind of stream.
    """
    check_callers(options, CHANGE_STREAM if options.read_change_feed else APPENDS)


def _check_together(options: ReaderOptions) -> None:
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
