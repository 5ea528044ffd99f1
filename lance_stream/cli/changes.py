"""Prints what was inserted, updated and deleted, version by version.

With --follow it goes on as new versions come, until it is interrupted or has reached --through.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from lance_stream.cli import output
from lance_stream.cli.arguments import add_table, open_table, parse_version
from lance_stream.dataset.dataset import Dataset
from lance_stream.dataset.feed.change_units import feed_schema
from lance_stream.dataset.feed.rules import EACH_VERSION, NET_CHANGES
from lance_stream.dataset.predicates import (
    Expression,
    evaluate_predicate,
    parse_predicate,
)
from lance_stream.errors import InvalidInputError

HELP: Final = "what was inserted, updated and deleted"

_ROWS_AT_ONCE: Final = 1000

_WIDTHS: Final = {"_change_type": len("update_postimage")}
"""How wide columns are at least, whatever the first rows have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    add_table(parser)
    parser.add_argument(
        "--after",
        metavar="VERSION",
        help="the version after which to begin, or a tag; 0 is before the first (default: 0, or "
        "the newest with --follow)",
    )
    parser.add_argument(
        "--through", metavar="VERSION", help="the last version, or a tag (default: the newest)"
    )
    parser.add_argument("--follow", action="store_true", help="go on as new versions come")
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
        help="table for people; json: one object a line; arrow: an IPC stream (default: table)",
    )
    parser.add_argument(
        "--columns", metavar="NAME[,NAME...]", help="columns of the table (default: all)"
    )
    parser.add_argument(
        "--filter", metavar="SQL", help="a condition on the table's and the change columns"
    )
    parser.add_argument(
        "--net", action="store_true", help="one change a row, over all versions together"
    )
    parser.add_argument(
        "--no-pre-images", action="store_true", help="leave out rows as they were before an update"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the changes."""
    if arguments.interval <= 0:
        raise InvalidInputError(f"--interval is longer than nothing, not {arguments.interval}")
    ds = open_table(arguments)
    after = _number(ds, arguments.after, ds.version if arguments.follow else 0)
    last = None if arguments.through is None else _number(ds, arguments.through, 0)
    writer = WRITERS[arguments.format]()
    if not arguments.follow:
        _write(ds, arguments, after, ds.version if last is None else last, writer)
    while arguments.follow and (last is None or after < last):
        newest = ds.table.log.latest()
        through = newest if last is None else min(newest, last)
        if through > after:
            _write(ds.checkout(through), arguments, after, through, writer)
            after = through
        else:
            time.sleep(arguments.interval)
    writer.close()
    return 0


def _number(ds: Dataset, text: str | None, default: int) -> int:
    """Return the version at an end of the interval."""
    version = parse_version(text)
    if version is None:
        return default
    return version if isinstance(version, int) else ds.checkout(version).version


def _write(
    ds: Dataset, arguments: argparse.Namespace, after: int, through: int, writer: "Writer"
) -> None:
    """Print the changes of an interval whose last version a dataset has."""
    columns = arguments.columns.split(",") if arguments.columns else None
    chosen = _Chosen(ds, columns, arguments.filter)
    reader = ds.changes(
        after,
        through,
        chosen.columns,
        NET_CHANGES if arguments.net else EACH_VERSION,
        pre_images=not arguments.no_pre_images,
    )
    with reader:
        writer.begin(pa.schema(chosen.columns_of(reader.schema)))
        for batch in reader:
            writer.write(chosen.rows_of(batch))
    sys.stdout.flush()


class _Chosen:
    """The rows and columns that are asked for, by a condition on columns of both kinds.

    Args:
        ds: The last version of the interval.
        columns: The columns of the table that are asked for; None for all.
        text: The condition in SQL; None for all rows.

    Attributes:
        columns: The columns of the table that have to be read; None for all.

    Raises:
        InvalidInputError: The condition is not understood.
        NotFoundError: It names a column that is not there.
    """

    def __init__(self, ds: Dataset, columns: Sequence[str] | None, text: str | None) -> None:
        self._condition: Expression | None = None
        self.columns = None if columns is None else list(columns)
        self._for_the_condition: set[str] = set()
        if text is None:
            return
        self._condition = parse_predicate(text, feed_schema(ds.table.arrow_schema))
        if self.columns is not None:
            there = {each.partition(".")[0] for each in self.columns}
            named = {path[0] for path in self._condition.paths}
            self._for_the_condition = (named & set(ds.schema.names)) - there
            self.columns += sorted(self._for_the_condition)

    def columns_of(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of the feed that are asked for."""
        return [each for each in schema if each.name not in self._for_the_condition]

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is asked for of a batch of the feed."""
        if self._condition is not None:
            batch = batch.filter(evaluate_predicate(self._condition, batch))
        return batch.select([each.name for each in self.columns_of(batch.schema)])


class Writer:
    """Prints the rows of the feed as they come."""

    def begin(self, schema: pa.Schema) -> None:
        """Say which columns the rows have that come next."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Say that there are no more."""


class JsonWriter(Writer):
    """One object a line."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        for part in _parts(batch):
            for row in output.rows_of(part):
                print(output.to_json(row))


class TableWriter(Writer):
    """Columns for people: as wide as the first rows need, and their header once."""

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
    """An IPC stream. It keeps the columns that it began with."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def begin(self, schema: pa.Schema) -> None:
        """Begin the stream, which has columns even where there are no rows."""
        if self._stream is None:
            self._schema = schema
            self._stream = pa.ipc.new_stream(sys.stdout.buffer, schema)
        elif schema != self._schema:
            raise InvalidInputError(
                "the columns of the table have changed, but an Arrow stream keeps those that it "
                "began with: begin another one after the last version that was printed"
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
