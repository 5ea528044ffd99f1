"""Prints the change feed: version by version; when following, as versions arrive."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lance_stream.cli.arguments import checkout, parse_version
from lance_stream.cli.read.writers import Writer
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
from lance_stream.feed.rules import NET_CHANGES, NO_DEDUPLICATION, FeedRules
from lance_stream.feed.value_conversion import show
from lance_stream.schema.types.extension_types import batch_with_extensions, with_extensions
from lance_stream.snapshot.opening import newest_of_same

_LONGEST_WAIT: Final = 86400


@dataclass(frozen=True)
class Request:
    """What to print.

    Attributes:
        after: The version or tag after which to begin; None for the default.
        through: The last version, or a tag; None for the newest, or no end.
        is_followed: Whether to continue with new versions.
        interval: Seconds between two polls for a new version.
        columns: Of the table; None for all.
        filter: A condition on the table's columns and the change columns.
        is_net: Whether to print one change per row over all versions.
        has_pre_images: Whether to print the pre-images of updates.
    """

    after: str | None
    through: str | None
    is_followed: bool
    interval: float
    columns: list[str] | None
    filter: str | None
    is_net: bool
    has_pre_images: bool


def print_changes(
    ds: Dataset, request: Request, writer: Writer, sleep: Callable[[float], None]
) -> None:
    """Print the changes of a table.

    Args:
        ds: The newest version.
        request: What to print.
        writer: How to print it.
        sleep: Waits for some seconds while there is no new version.
    """
    if not 0 < request.interval <= _LONGEST_WAIT:
        raise InvalidInputError(
            f"--interval must be greater than 0 and at most {_LONGEST_WAIT} seconds, not "
            f"{request.interval}"
        )
    after = _number(ds, request.after, ds.version if request.is_followed else 0)
    last = None if request.through is None else _number(ds, request.through, 0)
    through = ds.version if last is None else last
    if request.is_followed and request.after is None and last is not None and last <= after:
        raise InvalidInputError(
            f"--follow starts after the newest version, {after}, which is not before --through "
            f"{last}: give --after, too"
        )
    if not request.is_followed:
        _write(ds, request, after, through, writer, _Selection(ds.checkout(through), request))
    # names refer to the version at which following starts; without names, all columns are printed
    selection = _Selection(ds, request) if request.columns or request.filter else None
    printed = _version_before(ds, after) if request.is_followed else None
    while request.is_followed and (last is None or after < last):
        newest = _newest(ds, printed)
        through = newest.version if last is None else min(newest.version, last)
        if through > after:
            printed = newest.checkout(through)
            _write(
                printed, request, after, through, writer, selection or _Selection(printed, request)
            )
            after = through
        else:
            sleep(request.interval)
    writer.close()


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
    return version if isinstance(version, int) else checkout(ds, text).version


def _write(
    ds: Dataset,
    request: Request,
    after: int,
    through: int,
    writer: Writer,
    selection: "_Selection",
) -> None:
    """Print the changes of an interval that ends at a dataset's version."""
    selection.check_in(ds)
    mode = NET_CHANGES if request.is_net else NO_DEDUPLICATION
    rules = FeedRules(None, mode, pre_images=request.has_pre_images)
    with changes(ds.table, after, through, rules, selection.columns) as reader:
        writer.begin(selection.schema)
        for batch in reader:
            writer.write(selection.rows_of(batch))
    sys.stdout.flush()


class _Selection:
    """The requested rows and columns, with a condition on table columns and change columns.

    Args:
        ds: The version that the names refer to.
        request: What to print.

    Attributes:
        columns: Of the feed: the requested ones, and those that the condition names.

    Raises:
        InvalidInputError: The condition is invalid.
        NotFoundError: A column does not exist.
    """

    def __init__(self, ds: Dataset, request: Request) -> None:
        selected = request.columns
        self._condition: Expression | None = None
        needed = selected
        if request.filter is not None:
            schema = feed_schema(ds.table.arrow_schema)
            self._condition = parse_predicate(request.filter, schema)
            if selected is not None:
                needed = columns_named(ds.table, selected, self._condition)
        self.columns = FeedColumns(ds.table, needed)
        check_names(self.columns.data_schema)
        self._columns, self._sources = self.columns.narrowed(selected)

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
            pairs = zip(self.columns.data_schema, self.columns.as_in(ds.table), strict=True)
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
        return with_extensions(feed_schema(self._columns))

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested rows and columns of a batch of the feed."""
        if self._condition is not None:
            batch = batch.filter(evaluate_predicate(self._condition, batch))
        columns = [
            show(batch.column(source.index), source, field.type)
            for source, field in zip(self._sources, self._columns, strict=True)
        ]
        change_columns = batch.columns[len(self.columns.data_schema) :]
        return batch_with_extensions(
            pa.RecordBatch.from_arrays(
                [*columns, *change_columns], schema=feed_schema(self._columns)
            )
        )
