"""The change feed: the rows that were inserted, updated and deleted, version by version.

The feed covers one version at a time, so a row that is inserted and later deleted appears as both.
Within a version, deletes come first, then updates (pre-images, then post-images), then inserts.
Applying the changes in this order to the rows of the older version yields the rows of the newer
one. Versions that change no row (a compaction, an index, a config change) contribute nothing.
Fragments whose bytes are identical in both versions are not opened.

    delete             values and row versions as in the previous version
    update_preimage    as in the previous version; can be left out
    update_postimage   values and row versions as in the version itself
    insert             as in the version itself

The mode "netChanges" compares the two ends of the interval: a row that changed several times
appears once, and a row that was inserted and deleted does not appear. The commit version is the
last one of the interval. Intermediate versions are read only for what the ends do not show; see
`row_differences`.

Every row has the columns of the interval's last version, all of them nullable.
`columns_of_versions` finds them in older versions.

Planning reads manifests and deletion files. A `ChangeUnit` is picklable, and any worker can read
it.
"""

from dataclasses import dataclass

import pyarrow as pa

from lance_stream.feed.change_units import ChangeUnit, check_names, feed_schema, read_changes
from lance_stream.feed.columns_of_versions import FeedColumns, split_change_columns
from lance_stream.feed.intervals import IntervalEnd, checked_interval, version_of_interval
from lance_stream.feed.rules import FeedRules
from lance_stream.feed.steps import check_has_feed, walk
from lance_stream.snapshot.cached_log import CachedLog
from lance_stream.snapshot.table_version import TableVersion

ALL_CHANGES = FeedRules()


@dataclass(frozen=True)
class ChangesPlan:
    """The work units of an interval of the feed, in the feed's order.

    Attributes:
        units: The work units.
        arrow_schema: The selected columns of the table, then the selected change columns.
    """

    units: tuple[ChangeUnit, ...]
    arrow_schema: pa.Schema


def changes(
    table: TableVersion,
    after: IntervalEnd,
    through: IntervalEnd | None = None,
    rules: FeedRules = ALL_CHANGES,
    columns: FeedColumns | None = None,
) -> pa.RecordBatchReader:
    """Return the changes of an interval of versions; see `Dataset.changes` and `plan_changes`."""
    plan = plan_changes(table, after, through, rules, columns)
    names = plan.arrow_schema.names
    batches = (batch.select(names) for batch in read_changes(plan.units))
    return pa.RecordBatchReader.from_batches(plan.arrow_schema, batches)


def plan_changes(
    table: TableVersion,
    after: IntervalEnd,
    through: IntervalEnd | None = None,
    rules: FeedRules = ALL_CHANGES,
    columns: FeedColumns | None = None,
) -> ChangesPlan:
    """Plan the work units of an interval of the feed.

    Args:
        table: Any version of the table.
        after: The version after which the interval begins, 0 is before the first; or the time of
            the first commit that it may have.
        through: The last version of the interval, or the time of the last commit that it may have;
            None for the version of `table`.
        rules: The reader's settings.
        columns: The feed's columns, under the names of any version; None for the columns that
            the rules name, under the names of the interval's last version.

    Raises:
        InvalidInputError: The interval ends before its start, or after the newest version.
        NotFoundError: A version of the interval or a column does not exist.
        UnsupportedFeatureError: The table has no stable row ids.
    """
    after, through = checked_interval(table, after, table.version if through is None else through)
    table = table.with_log(CachedLog(table.log, table.manifest))
    last = version_of_interval(table, through, after, through)
    check_has_feed(last)
    names, change_columns = split_change_columns(last, rules.columns)
    columns = columns or FeedColumns(last, names)
    check_names(columns.data_schema)
    if not rules.is_net:
        last.log.prefetch(range(max(after, 1), through))
    steps = walk(last, after, through, rules, columns)
    return ChangesPlan(
        tuple(unit for step in steps for unit in step.units()),
        feed_schema(columns.data_schema, change_columns),
    )
