"""Prints the change feed, version by version."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lance_stream.cli.arguments import parse_version
from lance_stream.cli.read.writers import Writer
from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError, NotFoundError, TableReplacedError
from lance_stream.feed.changes import changes
from lance_stream.feed.expected_columns import check_columns
from lance_stream.feed.intervals import (
    check_can_follow,
    check_is_past,
    checked_interval,
    last_version,
    version_before,
    version_of_interval,
)
from lance_stream.feed.rules import NET_CHANGES, NO_DEDUPLICATION, FeedRules
from lance_stream.feed.selection import FeedSelection
from lance_stream.snapshot.opening import newest_version_of

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
        sleep: Waits between two polls, for a number of seconds.
    """
    if not 0 < request.interval <= _LONGEST_WAIT:
        raise InvalidInputError(
            f"--interval must be greater than 0 and at most {_LONGEST_WAIT} seconds, not "
            f"{request.interval}"
        )
    if request.is_followed:
        _follow(ds, request, writer, sleep)
    else:
        _print_interval(ds, request, writer)
    writer.close()


def _print_interval(ds: Dataset, request: Request, writer: Writer) -> None:
    after, through = checked_interval(
        ds.table,
        0 if request.after is None else parse_version(request.after),
        ds.version if request.through is None else parse_version(request.through),
    )
    last = Dataset(version_of_interval(ds.table, through, after, through))
    _write(last, request, after, through, writer, _selection(last, request))


def _follow(ds: Dataset, request: Request, writer: Writer, sleep: Callable[[float], None]) -> None:
    after, last = _followed_interval(ds, request)
    # requested columns are those of the version at which following starts; by default, all columns
    selection = _selection(ds, request) if request.columns or request.filter else None
    printed = _version_before(ds, after)
    while last is None or after < last:
        newest = _newest(ds, printed)
        through = newest.version if last is None else min(newest.version, last)
        if through > after:
            printed = newest.checkout(through)
            _write(
                printed, request, after, through, writer, selection or _selection(printed, request)
            )
            after = through
        else:
            sleep(request.interval)


def _followed_interval(ds: Dataset, request: Request) -> tuple[int, int | None]:
    """Return the version after which following starts, and the last version, if any.

    Raises:
        InvalidInputError: It would start after the newest version, or end before it starts.
    """
    after, last = ds.version, None
    if request.after is not None:
        start = parse_version(request.after)
        if isinstance(start, datetime):
            check_is_past(start, "--after", "to print only new changes, omit --after")
        after = version_before(ds.table, start)
        check_can_follow(ds.uri, after, ds.version)
    if request.through is not None:
        end = parse_version(request.through)
        if isinstance(end, datetime):
            check_is_past(end, "--through", "omit it, and interrupt the command at that time")
        last = last_version(ds.table, end)
    if last is not None and request.after is None and last <= after:
        raise InvalidInputError(
            f"--follow starts after the newest version, {after}, but --through {last} is not "
            "later: add --after"
        )
    if last is not None and last < after:
        raise InvalidInputError(
            f"--follow starts after version {after}, but --through is version {last}, which is "
            "earlier"
        )
    return after, last


def _version_before(ds: Dataset, version: int) -> Dataset | None:
    """Return the version after which changes are printed; None if it does not exist."""
    with suppress(NotFoundError):
        return ds.checkout(version) if version else None
    return None


def _newest(ds: Dataset, printed: Dataset | None) -> Dataset:
    """Return the newest version of the table whose changes are printed.

    Args:
        ds: Any version.
        printed: The last version whose changes were printed; None before the first one.

    Raises:
        NotFoundError: The table was deleted or replaced.
    """
    if printed is None:
        return ds.checkout(None)
    try:
        return Dataset(newest_version_of(printed.table))
    except TableReplacedError as error:
        raise NotFoundError(
            f"version {printed.version} of {ds.uri}, the last one whose changes were printed, was "
            "replaced: the table was deleted and re-created, or restored from a copy. To print the "
            "changes of the new table, start over with --after 0"
        ) from error


def _write(
    ds: Dataset,
    request: Request,
    after: int,
    through: int,
    writer: Writer,
    selection: FeedSelection,
) -> None:
    """Print the changes of an interval that ends at a dataset's version."""
    check_columns(selection.columns, ds.table, "Start over after the last version that was printed")
    mode = NET_CHANGES if request.is_net else NO_DEDUPLICATION
    rules = FeedRules(None, mode, pre_images=request.has_pre_images)
    with changes(ds.table, after, through, rules, selection.columns) as reader:
        writer.begin(selection.rows.schema)
        for batch in reader:
            writer.write(selection.rows.rows_of(batch))
    sys.stdout.flush()


def _selection(ds: Dataset, request: Request) -> FeedSelection:
    """Return the requested rows and columns, by the names of a version."""
    return FeedSelection(ds.table, request.columns, request.filter)
