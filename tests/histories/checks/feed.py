"""The change feed: a version's rows and the changes after it give a later version's rows."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lance_stream.feed.row_differences import RowDifferences
from lance_stream.table.changes.row_counts import ChangedRowCounts
from tests.histories.life import STAMPS, Life, Line, plain_rows
from tests.histories.model import KEY, LENGTH_OF_VECTORS, LISTS, NUMBERS, Column, State
from tests.histories.steps import Choices, DoesNotFit, check

Change = dict[str, Any]
Rows = dict[int, dict[str, Any]]
ORDER = ["delete", "update", "insert"]
MAX_VERSIONS = 3
"""Of so many versions the changes are read at once; each of them is read, too."""


@dataclass
class ChangedRows:
    """The row ids that a part of the feed changes."""

    removed: set[int] = field(default_factory=set)
    added: set[int] = field(default_factory=set)
    updated: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, changes: Iterable[Change]) -> "ChangedRows":
        rows = cls()
        sets = {"delete": rows.removed, "insert": rows.added, "update": rows.updated}
        for change in changes:
            sets[change["_change_type"].split("_")[0]].add(change["_rowid"])
        return rows


def content_of(change: Change) -> dict[str, Any]:
    return {k: v for k, v in change.items() if k in STAMPS or not k.startswith("_")}


def check_law(changes: list[Change], older: Rows, newer: Rows, lost: set[str]) -> ChangedRows:
    """Check that changes lead from the rows of one version to those of another.

    Args:
        changes: In the feed's order.
        older: The rows of the older version, by row id.
        newer: Those of the newer one.
        lost: Columns that the newer version lacks: rows lose them without a change.
    """
    rows, before = dict(older), {}
    kinds = [change["_change_type"].split("_")[0] for change in changes]
    assert kinds == sorted(kinds, key=ORDER.index), "deletes, updates, inserts, in this order"
    for change in changes:
        row_id, kind, content = change["_rowid"], change["_change_type"], content_of(change)
        if kind == "delete":
            assert rows.pop(row_id, None) == content, f"no row of the older version: {change}"
        elif kind == "update_preimage":
            assert row_id not in before
            old = rows.pop(row_id, None)
            assert old == content, f"a pre-image is the older version's row {old}, not {change}"
            before[row_id] = content
        elif kind == "update_postimage":
            assert before.pop(row_id, None) is not None, f"no pre-image: {change}"
            rows[row_id] = content
        else:
            assert kind == "insert"
            assert row_id not in rows, f"an inserted row is new: {change}"
            rows[row_id] = content
    assert before == {}, "each pre-image has its post-image"
    changed_rows = ChangedRows.of(changes)
    for row_id in rows.keys() - changed_rows.updated - changed_rows.added:
        rows[row_id] = {**rows[row_id], **dict.fromkeys(lost)}
    for row_id in sorted(rows.keys() | newer.keys()):
        one, other = rows.get(row_id), newer.get(row_id)
        assert one == other, f"by the changes row {row_id} is {one}, but it is {other}"
    return changed_rows


def column_at(line: Line, version: int, column: Column) -> Column | None:
    """Return what a column of another version is in this one; None if it is not there."""
    root = line.life.root_of
    same = [c for c in line.states[version].columns if root(c.ident) == root(column.ident)]
    return same[0] if same and is_convertible(same[0].kind, column.kind) else None


def is_convertible(old: str, new: str) -> bool:
    """Return whether a feed converts values of one kind to another: small whole numbers, lists."""
    return old == new or {old, new} <= NUMBERS or {old, new} <= LISTS


def convert(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind in LISTS:
        values = [convert(item, "int64" if kind == "list" else "float32") for item in value]
        return values if kind == "list" or len(values) == LENGTH_OF_VECTORS else None
    if kind in NUMBERS:
        return float(value) if kind.startswith("float") else int(value)
    return value


def under(line: Line, version: int, through: int) -> Rows:
    """Return the rows of a version, by row id, with the columns of a later one."""
    sources = [
        (column.name, column.kind, column_at(line, version, column))
        for column in line.states[through].columns
    ]
    return {
        row_id: {
            KEY: row[KEY],
            **{
                name: convert(row[source.name], kind) if source else None
                for name, kind, source in sources
            },
            **{stamp: row[stamp] for stamp in STAMPS},
        }
        for row_id, row in line.snapshot(version).items()
    }


@dataclass
class Expected:
    """What changed between two versions, by serial; `maybe` are rows that may count as updated."""

    removed: set[int]
    added: set[int]
    updated: set[int]
    maybe: set[int]


def expected_changes(line: Line, after: int, through: int, *, backfills: bool = True) -> Expected:
    """Return what the model says of two versions.

    Args:
        line: The line of versions.
        after: The earlier version.
        through: The later one; the one after it if new columns' values are no changes.
        backfills: Whether a row that only got values in new columns counts as updated.
    """
    old, new = line.states[after], line.states[through]
    root = line.life.root_of
    before, now = old.by_serial(), new.by_serial()
    both = before.keys() & now.keys()
    updated = {s for s in both if before[s].touched != now[s].touched}
    has_restore = not line.restored.isdisjoint(range(after + 1, through + 1))
    filled = {s for s in both if before[s].filled != now[s].filled}
    rewritten = {s for s in both if before[s].rewritten != now[s].rewritten}
    # after a restore, whole fragments are in doubt whose columns were rewritten at any time
    maybe = set(both) if has_restore and line.unstamped else set()
    first = 1 if has_restore else after + 1
    if not {root(line.unstamped[v]) for v in line.unstamped if first <= v <= through} <= {
        root(column.ident) for column in new.columns
    }:
        maybe |= rewritten  # of a rewritten column that has been dropped since, no trace is left
    updated |= rewritten - maybe
    if not backfills:  # what a row got and lost by a restore hides what is a backfill
        maybe |= filled if has_restore else set()
        return Expected(before.keys() - both, now.keys() - both, updated, maybe)
    updated |= filled
    there = {root(column.ident) for column in old.columns}
    returned = [c.ident for c in new.columns if root(c.ident) not in there]
    updated |= {s for s in both if any(now[s].values.get(c) is not None for c in returned)}
    maybe |= set(both) if returned and has_restore else set()
    return Expected(before.keys() - both, now.keys() - both, updated, maybe)


def check_kinds(line: Line, rows: ChangedRows, expected: Expected) -> None:
    ids = line.row_ids
    assert rows.removed == {ids[s] for s in expected.removed}, "deleted rows"
    assert rows.added == {ids[s] for s in expected.added}, "inserted rows"
    must, may = ({ids[s] for s in part} for part in (expected.updated, expected.maybe))
    assert must <= rows.updated <= must | may, (
        f"updated rows: missing {must - rows.updated}, unexpected {rows.updated - must - may}"
    )


def read_feed(line: Line, after: int, through: int, **rules: Any) -> list[Change]:
    return plain_rows(line.ours().changes(after, through, **rules).read_all())


def lost_columns(line: Line, version: int, through: int) -> set[str]:
    columns = line.states[through].columns
    return {column.name for column in columns if column_at(line, version, column) is None}


def all_exist(line: Line, after: int, through: int) -> bool:
    first = max(after, 1)
    return line.existing.issuperset(range(first, through + 1))


def choose_range(
    line: Line, choose: Choices, *, whole: bool, maximum: int = sys.maxsize
) -> tuple[int, int]:
    """Choose two versions that exist, at most so far apart; with all those between them."""
    if not line.life.is_stable:
        raise DoesNotFit("no stable row ids")
    first = min(line.existing)
    starts = sorted(line.existing | ({0} if first == 1 and line.start == 0 else set()))
    after = choose.one_of("after", starts)
    ends = [v for v in starts if max(after, 1) <= v <= after + maximum]
    ends = [v for v in ends if not whole or all_exist(line, after, v)]
    return after, choose.one_of("through", [v for v in ends if can_follow(line, after, v)])


def can_follow(line: Line, after: int, through: int) -> bool:
    """Return whether it is known which columns a restore in a range has brought back.

    Those that were renamed, overwritten, or dropped and re-created can be followed only through
    the versions before it, which a cleanup may have removed.
    """
    is_whole = line.existing == {*range(min(line.existing), line.newest + 1)}
    if (is_whole and min(line.existing) <= line.start + 1) or line.restored.isdisjoint(
        range(after + 1, through + 1)
    ):
        return True
    columns = [
        {(column.ident, column.name) for column in line.states[version].columns}
        for version in range(max(after, 1), through + 1)
    ]
    return all(one == columns[0] for one in columns)


@check(weight=3)
def changes(life: Life, choose: Choices) -> None:
    """The feed leads from each version to the next, and says of each row what happened to it."""
    line = life.line(choose)
    after, through = choose_range(line, choose, whole=True, maximum=MAX_VERSIONS)
    feed = read_feed(line, after, through)
    for name in ("_commit_version", "_commit_timestamp"):
        assert [change[name] for change in feed] == sorted(change[name] for change in feed)
    by_version: dict[int, list[Change]] = {}
    for change in feed:
        by_version.setdefault(change["_commit_version"], []).append(change)
    assert by_version.keys() <= {*range(after + 1, through + 1)}
    newer = under(line, after, through)
    for version in range(after + 1, through + 1):
        older, newer = newer, under(line, version, through)
        lost = lost_columns(line, version, through)
        rows = check_law(by_version.get(version, []), older, newer, lost)
        check_kinds(line, rows, expected_changes(line, version - 1, version))
        without = read_feed(line, version - 1, version, column_backfills=False)
        expected = expected_changes(line, version - 1, version, backfills=False)
        check_kinds(line, ChangedRows.of(without), expected)
    check_rules(line, choose, feed, after, through)


@check(weight=2)
def net_changes(life: Life, choose: Choices) -> None:
    """Net changes lead from one version to another, whatever was cleaned up between them."""
    line = life.line(choose)
    after, through = choose_range(line, choose, whole=False)
    if not all_exist(line, after, through):
        raise DoesNotFit("versions between are gone")
    net = read_feed(line, after, through, deduplication_mode="netChanges")
    assert {change["_commit_version"] for change in net} <= {through}
    rows = check_law(net, under(line, after, through), under(line, through, through), set())
    check_kinds(line, rows, expected_changes(line, after, through))
    check_pylance(line, rows, after, through)
    check_rules(line, choose, net, after, through, deduplication_mode="netChanges")


def check_pylance(line: Line, rows: ChangedRows, after: int, through: int) -> None:
    """Compare net changes with pylance's, which follow from the row versions of one version."""
    versions = {*range(after + 1, through + 1)}
    if not versions or versions & (line.restored | line.unstamped.keys()):
        return
    delta = line.pylance(through).delta(begin_version=after, end_version=through)
    line.life.counts["net changes compared with pylance"] += 1
    assert rows.removed == row_ids_in(delta.get_deleted_row_ids())
    assert rows.added == row_ids_in(delta.get_inserted_rows())
    assert rows.updated == row_ids_in(delta.get_updated_rows())


def row_ids_in(reader: pa.RecordBatchReader) -> set[int]:
    return {*reader.read_all()["_rowid"].to_pylist()}


@check(weight=1)
def row_counts(life: Life, choose: Choices) -> None:
    """The counts of changed rows, which come from manifests, are those of the feed."""
    line = life.line(choose)
    after, through = choose_range(line, choose, whole=True, maximum=MAX_VERSIONS)
    ds = line.ours()
    differences = RowDifferences(ds.table)
    in_manifests = {info.version: info.row_counts for info in ds.versions()}
    counted = {info.version: info.row_counts for info in ds.versions(count_rows=True)}
    for version in range(after + 1, through + 1):
        older = ds.checkout(version - 1).table if version > 1 else None
        of_feed = ChangedRowCounts.of(differences.changes(older, ds.checkout(version).table))
        assert counted[version] == of_feed, version
        assert in_manifests[version] in (None, of_feed), version
        life.counts["row counts from manifests"] += in_manifests[version] is not None


def check_rules(
    line: Line, choose: Choices, feed: list[Change], after: int, through: int, **rules: Any
) -> None:
    """Check that one of the other rules gives the same changes in other words."""
    rule = choose("rule", lambda dice: dice.choice(["none", "post-images", "no updates"]))
    if rule == "post-images":
        without = read_feed(line, after, through, pre_images=False, **rules)
        assert without == [c for c in feed if c["_change_type"] != "update_preimage"]
    if rule != "no updates":
        return
    split = read_feed(line, after, through, compute_updates=False, **rules)
    words = {"update_preimage": "delete", "update_postimage": "insert"}
    as_split = [
        {**c, "_change_type": words.get(c["_change_type"], c["_change_type"])} for c in feed
    ]
    as_split.sort(key=lambda change: (change["_commit_version"], change["_change_type"]))
    assert split == as_split


def schema_of(state: State) -> list[tuple[str, str]]:
    return [(column.name, column.kind) for column in state.columns]
