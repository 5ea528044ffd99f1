"""The change feed: the rows that were inserted, updated and deleted, version by version.

The feed walks one version at a time, so that a row which is inserted and deleted again shows as
both. Within one version deletes come first, then updates (the rows as they were, then the rows as
they are), then inserts: whoever applies the changes in this order to the rows of the older version
gets those of the newer one. Versions that change no row (a compaction, an index, a config) give
nothing, and fragments whose bytes are the same in both versions are not opened.

    delete             content and stamps as in the version before
    update_preimage    likewise; only where asked for
    update_postimage   content and stamps as in the version itself
    insert             likewise

"netChanges" compares the two ends: a row that was changed often shows once, one that came and went
not at all. Their commit version is the last one of the interval. The versions between are asked
only for what the ends do not show; see `row_differences`.

Every row has the columns of the interval's last version, all of them nullable; see
`columns_of_versions` for how an older version has them.

Planning reads manifests and deletion files; a `ChangeUnit` is picklable and read by any worker.
"""

from dataclasses import dataclass

import pyarrow as pa

from lance_stream.feed.change_units import ChangeUnit, check_names, read_changes
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.intervals import checked_interval, version_of_interval
from lance_stream.feed.rules import FeedRules
from lance_stream.feed.steps import check_has_feed, walk
from lance_stream.snapshot.table_version import TableVersion

ALL_CHANGES = FeedRules()


@dataclass(frozen=True)
class ChangesPlan:
    """Everything that has to be read for an interval of the feed, in the feed's order.

    Attributes:
        units: The work units.
        arrow_schema: The feed's columns: the table's own, then the change columns.
    """

    units: tuple[ChangeUnit, ...]
    arrow_schema: pa.Schema


def changes(
    table: TableVersion,
    after: int,
    through: int | None = None,
    rules: FeedRules = ALL_CHANGES,
    columns: FeedColumns | None = None,
) -> pa.RecordBatchReader:
    """Return the changes of an interval of versions; see `Dataset.changes` and `plan_changes`."""
    plan = plan_changes(table, after, through, rules, columns)
    return pa.RecordBatchReader.from_batches(plan.arrow_schema, read_changes(plan.units))


def plan_changes(
    table: TableVersion,
    after: int,
    through: int | None = None,
    rules: FeedRules = ALL_CHANGES,
    columns: FeedColumns | None = None,
) -> ChangesPlan:
    """Return what has to be read for an interval of the feed.

    Args:
        table: Any version of the table.
        after: The version after which the interval begins; 0 is before the first.
        through: Its last version; None for the version of `table`.
        rules: What is asked for.
        columns: The feed's columns, in the words of any version; None for those that the rules
            name in the interval's last one.

    Raises:
        InvalidInputError: The interval ends before it begins, or after the newest version.
        NotFoundError: A version of the interval is gone, or a column is not there.
        UnsupportedFeatureError: The table has no stable row ids.
    """
    after, through = checked_interval(table, after, table.version if through is None else through)
    last = version_of_interval(table, through, after, through)
    check_has_feed(last)
    columns = columns or FeedColumns(last, rules.columns)
    check_names(columns.own)
    steps = walk(last, after, through, rules, columns)
    return ChangesPlan(tuple(unit for each in steps for unit in each.units()), columns.arrow_schema)
