"""Prints what was inserted, updated and deleted, version by version.

With --follow it continues with new versions until it is interrupted or has reached --through.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa

from lance_stream.cli import output
from lance_stream.cli.arguments import add_table, open_table, parse_version
from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError, NotFoundError, TableReplacedError
from lance_stream.expressions.predicates import (
    Expression,
    evaluate_predicate,
    parse_predicate,
)
from lance_stream.feed.change_units import check_names, feed_schema
from lance_stream.feed.changes import changes
from lance_stream.feed.columns_of_versions import FeedColumns, columns_named
from lance_stream.feed.rules import EACH_VERSION, NET_CHANGES, FeedRules
from lance_stream.feed.shown_values import show
from lance_stream.schema.extension_types import batch_with_extensions, with_extensions
from lance_stream.snapshot.opening import newest_of_same

HELP: Final = "print inserted, updated and deleted rows"

_ROWS_AT_ONCE: Final = 1000

_LONGEST_WAIT: Final = 86400

_WIDTHS: Final = {"_change_type": len("update_postimage")}
"""Minimum widths of columns, whatever the first rows contain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(parser)
    parser.add_argument(
        "--after",
        metavar="VERSION",
        help="start after this version or tag; 0 is before the first (default: 0, or the newest "
        "with --follow)",
    )
    parser.add_argument(
        "--through", metavar="VERSION", help="the last version, or a tag (default: the newest)"
    )
    parser.add_argument("--follow", action="store_true", help="continue with new versions")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=float,
        default=1.0,
        help="how often --follow looks for a new version (default: 1)",
    )
    parser.add_argument(
        "--format",
        choices=sorted(WRITERS),
        default="table",
        help="table: for people; json: one object per line; arrow: an IPC stream (default: table)",
    )
    parser.add_argument(
        "--columns", metavar="NAME[,NAME...]", help="columns of the table (default: all)"
    )
    parser.add_argument(
        "--filter", metavar="SQL", help="a condition on the table's columns and the change columns"
    )
    parser.add_argument("--net", action="store_true", help="one change per row over all versions")
    parser.add_argument(
        "--no-pre-images", action="store_true", help="omit the pre-images of updates"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the changes."""
    if not 0 < arguments.interval <= _LONGEST_WAIT:
        raise InvalidInputError(
            f"--interval must be greater than 0 and at most {_LONGEST_WAIT} seconds, not "
            f"{arguments.interval}"
        )
    ds = open_table(arguments)
    after = _number(ds, arguments.after, ds.version if arguments.follow else 0)
    last = None if arguments.through is None else _number(ds, arguments.through, 0)
    writer = WRITERS[arguments.format]()
    through = ds.version if last is None else last
    if not arguments.follow:
        _write(ds, arguments, after, through, writer, _Chosen(ds.checkout(through), arguments))
    # names refer to the version at which following starts; without names, all columns are printed
    chosen = _Chosen(ds, arguments) if arguments.columns or arguments.filter else None
    printed = _version_before(ds, after) if arguments.follow else None
    while arguments.follow and (last is None or after < last):
        newest = _newest(ds, printed)
        through = newest.version if last is None else min(newest.version, last)
        if through > after:
            printed = newest.checkout(through)
            _write(
                printed, arguments, after, through, writer, chosen or _Chosen(printed, arguments)
            )
            after = through
        else:
            arguments.environment.sleep(arguments.interval)
    writer.close()
    return 0


def _version_before(ds: Dataset, version: int) -> Dataset | None:
    """Return the version after which changes are printed; None if it does not exist."""
    with suppress(NotFoundError):
        return ds.checkout(version) if version else None
    return None


def _newest(ds: Dataset, printed: Dataset | None) -> Dataset:
    """Return the newest version of the table whose changes are printed.

    Args:
        ds: Any version.
        printed: The version up to which changes have been printed; None for none yet.

    Raises:
        NotFoundError: The table was deleted or replaced.
    """
    if printed is None:
        return ds.checkout(None)
    try:
        return Dataset(newest_of_same(printed.table))
    except TableReplacedError as error:
        raise NotFoundError(
            f"version {printed.version} of {ds.uri}, up to which changes have been printed, has "
            "been replaced: the table was deleted and recreated, or restored from a copy. To print "
            "the new table, start over with --after 0"
        ) from error


def _number(ds: Dataset, text: str | None, default: int) -> int:
    """Return the version at an end of the interval."""
    version = parse_version(text)
    if version is None:
        return default
    return version if isinstance(version, int) else ds.checkout(version).version


def _write(
    ds: Dataset,
    arguments: argparse.Namespace,
    after: int,
    through: int,
    writer: "Writer",
    chosen: "_Chosen",
) -> None:
    """Print the changes of an interval that ends at a dataset's version."""
    chosen.check_in(ds)
    mode = NET_CHANGES if arguments.net else EACH_VERSION
    rules = FeedRules(None, mode, pre_images=not arguments.no_pre_images)
    with changes(ds.table, after, through, rules, chosen.columns) as reader:
        writer.begin(chosen.schema)
        for batch in reader:
            writer.write(chosen.rows_of(batch))
    sys.stdout.flush()


class _Chosen:
    """The requested rows and columns, with a condition on table columns and change columns.

    Args:
        ds: The version that the names refer to.
        arguments: The command's arguments.

    Attributes:
        columns: Of the feed: the requested ones, and those that the condition names.

    Raises:
        InvalidInputError: The condition is invalid.
        NotFoundError: A column does not exist.
    """

    def __init__(self, ds: Dataset, arguments: argparse.Namespace) -> None:
        asked = arguments.columns.split(",") if arguments.columns else None
        self._condition: Expression | None = None
        wanted = asked
        if arguments.filter is not None:
            schema = feed_schema(ds.table.arrow_schema)
            self._condition = parse_predicate(arguments.filter, schema)
            if asked is not None:
                wanted = columns_named(ds.table, asked, self._condition)
        self.columns = FeedColumns(ds.table, wanted)
        check_names(self.columns.own)
        self._own, self._sources = self.columns.narrowed(asked)

    def check_in(self, ds: Dataset) -> None:
        """Raise unless a later version still has the columns, with the types that they had.

        Raises:
            InvalidInputError: It does not.
        """
        as_of = self.columns.as_of
        if ds.version <= as_of.version:
            return
        missing, other = self.columns.missing_in(ds.table), None
        change = f"no longer has the column {missing!r}, which"
        if missing is None:
            pairs = zip(self.columns.own, self.columns.as_in(ds.table), strict=True)
            other = next((was.name for was, now in pairs if was.type != now.type), None)
            change = f"has another type for the column {other!r}, which"
        if missing is not None or other is not None:
            raise InvalidInputError(
                f"version {ds.version} of {ds.uri} {change} was requested as of version "
                f"{as_of.version}; start over after the last version that was printed"
            )

    @property
    def schema(self) -> pa.Schema:
        """The columns that are printed."""
        return with_extensions(feed_schema(self._own))

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested rows and columns of a batch of the feed."""
        if self._condition is not None:
            batch = batch.filter(evaluate_predicate(self._condition, batch))
        own = [
            show(batch.column(source.place), source, field.type)
            for source, field in zip(self._sources, self._own, strict=True)
        ]
        change_columns = batch.columns[len(self.columns.own) :]
        return batch_with_extensions(
            pa.RecordBatch.from_arrays([*own, *change_columns], schema=feed_schema(self._own))
        )


class Writer:
    """Prints the rows of the feed as they are read."""

    def begin(self, schema: pa.Schema) -> None:
        """Set the columns of the rows that follow."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish the output."""


class JsonWriter(Writer):
    """One object per line."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        for part in _parts(batch):
            for row in output.rows_of(part):
                print(output.to_json(row))


class TableWriter(Writer):
    """A table for people: columns as wide as the first rows need, and one header."""

    def __init__(self) -> None:
        self._header: list[str] = []
        self._widths: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        for part in _parts(batch):
            rows = [[output.cell(each) for each in row.values()] for row in output.rows_of(part)]
            if self._header != part.schema.names:
                self._header = part.schema.names
                columns = zip(self._header, *rows, strict=True)
                self._widths = [
                    max(_WIDTHS.get(column[0], 0), *map(len, column)) for column in columns
                ]
                self._print(self._header)
            for row in rows:
                self._print(row)

    def _print(self, cells: Sequence[str]) -> None:
        pairs = zip(cells, self._widths, strict=True)
        print("  ".join(cell.ljust(width) for cell, width in pairs).rstrip())


class ArrowWriter(Writer):
    """An IPC stream. Its columns cannot change."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def begin(self, schema: pa.Schema) -> None:
        """Start the stream, which has columns even without rows."""
        if self._stream is None:
            self._schema = schema
            self._stream = pa.ipc.new_stream(sys.stdout.buffer, schema)
        elif schema != self._schema:
            raise InvalidInputError(
                "the columns of the table have changed, but those of an Arrow stream cannot: start "
                "another stream after the last version that was printed"
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        if self._stream is not None:
            self._stream.write_batch(batch)

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.close()


WRITERS: Final[dict[str, type[Writer]]] = {
    "table": TableWriter,
    "json": JsonWriter,
    "arrow": ArrowWriter,
}


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, _ROWS_AT_ONCE) for start in range(0, batch.num_rows, _ROWS_AT_ONCE))
