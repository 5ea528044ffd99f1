"""Suggestions for options that do not exist."""

from collections.abc import Iterable, Mapping
from typing import Final

from lance_stream.errors import InvalidInputError
from lance_stream.spark.arguments.table import as_option, nearest, options_of
from lance_stream.storage.options.names import is_option

_NO_CATALOG: Final = (
    "Spark's own catalog does not pass a table's path on to Python sources, so a table of CREATE "
    "TABLE can be neither read nor written: drop it. Use CREATE TEMPORARY VIEW name USING format "
    "OPTIONS (path '...'); with columns, name (id BIGINT, ...), the first INSERT INTO the view "
    "creates the table"
)
NO_PATH: Final = (
    "the path of the table is missing: give it to {}, or as the option `path`. " + _NO_CATALOG
)
_OF_THE_CATALOG: Final = frozenset({"provider", "owner"})

_COMPACTION: Final = (
    "Spark ends the process of a commit, so it cannot compact in the background. Use "
    'foreachBatch(lance_sink(path, compact="auto")), or call Dataset.compact() from time to time'
)
_START: Final = (
    "the first version whose changes are read is set by 'startingVersion' or 'startingTimestamp'"
)
_END: Final = (
    "the last version whose changes are read is set by 'endingVersion' or 'endingTimestamp'"
)
_ELSEWHERE: Final[Mapping[str, str]] = {
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
    "since": _START,
    "after": _START,
    "until": _END,
    "through": _END,
    "ignorechanges": "the change feed, readChangeFeed=true, contains updates and deletes",
    "ignoredeletes": (
        "versions that update or delete are skipped with skipChangeCommits=true, or read as "
        "changes with readChangeFeed=true"
    ),
    "maxfilespertrigger": "use maxVersionsPerTrigger, maxRowsPerTrigger or maxBytesPerTrigger",
    "compactevery": _COMPACTION,
    "compact": _COMPACTION,
    "createoptions": (
        "create the table first, by lance_stream.create_dataset(path, schema, ...), to choose the "
        "types of its columns"
    ),
}
"""Options of other table formats and of our sink, in lower case, and where their function is."""


def refuse_unknown(names: Iterable[str], table: type, others: type, purpose: str) -> None:
    """Raise if an option is not in a table.

    Args:
        names: The names of the user's options, in lower case.
        table: The options of the user's reader or writer.
        others: Those of the other.
        purpose: What the others are for.

    Raises:
        InvalidInputError: One is not; the message says what the user may have meant.
    """
    for name in names:
        if name in options_of(table):
            continue
        if name in _OF_THE_CATALOG:
            raise InvalidInputError(_NO_CATALOG)
        if name in options_of(others):
            raise InvalidInputError(f"{as_option(options_of(others)[name].name)} {purpose}")
        if is_option(name):
            raise InvalidInputError(
                f"{name!r} is a storage option: set all of them as one JSON object in the option "
                "'secretStorageOptions', or for all tables of a session by register(spark, "
                "storage_options={...}) or Spark's own settings (spark.hadoop.fs.s3a.access.key, "
                "...)"
            )
        options = [option.name for option in options_of(table).values()]
        hint = (
            f": {_ELSEWHERE[name]}"
            if name in _ELSEWHERE
            else nearest(name, options, "the options are")
        )
        raise InvalidInputError(f"there is no option {name!r}{hint}")
