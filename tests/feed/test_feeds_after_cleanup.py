"""A cleanup does not change the feed of the remaining versions."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.feed.ancestry import restored_version
from lance_stream.feed.row_differences import RowDifferences
from lance_stream.snapshot.cached_log import CachedLog
from lance_stream.table.paths import manifest_path
from tests.sampling import ALL_CASES

Step = tuple[str, int]

VERBS = ["append", "update", "swap", "rename", "drop", "add", "compact", "restore", "overwrite"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5)), min_size=2, max_size=7)


def versions_that_reuse_ids(ds: lance_stream.Dataset, versions: Iterable[int]) -> set[int]:
    """Return the versions whose new columns have ids of columns that were dropped before.

    A compaction has removed the values under the id: what it means is known from the versions
    between alone.
    """
    reusing: set[int] = set()
    dropped: set[int] = set()
    before: set[int] = set()
    for version in sorted(versions):
        ids = {field.id for field in ds.checkout(version).table.schema.walk()}
        if ids & dropped:
            reusing.add(version)
        dropped = (dropped | (before - ids)) - ids
        before = ids
    return reusing


def lost_lineages(ds: lance_stream.Dataset, unstamped: Iterable[int] = ()) -> set[int]:
    """Return before which versions a cleanup removes what the feed of later ones needs.

    A restore reaches back to a version before them, and what comes between, now gone as well, gave
    field ids another meaning (an overwrite, another restore, or a new column with the id of one
    that was dropped and compacted away), or changed rows without new row versions.

    Args:
        ds: The newest version.
        unstamped: Versions that changed rows without new row versions.
    """
    infos = {version.version: version.operation for version in ds.versions()}
    unknown = {v for v, name in infos.items() if name in ("Overwrite", "Restore")} | {*unstamped}
    unknown |= versions_that_reuse_ids(ds, infos)
    restored = {v: restored_version(ds.checkout(v).table) for v in infos}
    return {
        first
        for restore, origin in restored.items()
        for between in unknown
        if origin is not None and between > origin
        for first in range(max(between, origin + 2), restore)
    }


def rows(ds: Dataset, *ids: int) -> pa.Table:
    """Return rows whose values tell the column of each apart, and the version."""
    columns = {
        name: [100 * ds.version + 10 * index + id_ for id_ in ids]
        for index, name in enumerate(ds.schema.names)
    }
    return pa.table({**columns, "id": list(ids)}, ds.schema)


def do(ds: Dataset, step: Step) -> Dataset:
    verb, number = step
    names = [name for name in ds.schema.names if name != "id"]
    if verb == "append":
        return ds.append(rows(ds, 10 * ds.version, 10 * ds.version + 1))
    if verb == "update":  # of all rows, or of some
        return ds.upsert(rows(ds, 1, 2, 3)[: 1 + number % 3], on="id")
    if verb == "swap" and len(names) > 1:
        return ds.rename_columns({names[0]: names[1], names[1]: names[0]})
    if verb == "rename" and names:
        return ds.rename_columns({names[number % len(names)]: f"r{ds.version}"})
    if verb == "drop" and len(names) > 1:
        return ds.drop_columns([names[number % len(names)]])
    if verb == "add":
        name = next(name for name in "abcdefghijk" if name not in names)
        return ds.add_columns({name: "id * 7"} if number % 2 else pa.field(name, pa.int64()))
    if verb == "compact":
        return ds.compact()
    if verb == "overwrite":
        return ds.overwrite(rows(ds, 1, 2))
    return ds.restore(1 + number % ds.version)


def feeds(ds: Dataset, first: int) -> dict[tuple[int, int, str], list[dict[str, Any]]]:
    """Return the feed of each version, and of each range to the newest one."""
    ranges = {(after, after + 1) for after in range(first, ds.version)}
    ranges |= {(after, ds.version) for after in range(first, ds.version)}
    return {
        (after, through, mode): ds.changes(after, through, deduplication_mode=mode)
        .read_all()
        .to_pylist()
        for after, through in sorted(ranges)
        for mode in ("none", "netChanges")
    }


@settings(max_examples=60 if ALL_CASES else 15)
@given(steps=STEPS, tagged=st.none() | st.integers(1, 3))
@example(tagged=None, steps=[("swap", 0), ("restore", 0)])
@example(
    tagged=None,
    steps=[("append", 0), ("drop", 1), ("compact", 0), ("add", 0), ("restore", 1)],
)
@example(tagged=None, steps=[("update", 2), ("swap", 0), ("restore", 0)])
@example(tagged=None, steps=[("rename", 0), ("update", 2), ("restore", 0)])
@example(tagged=None, steps=[("drop", 0), ("drop", 0), ("update", 0), ("compact", 0)])
@example(
    tagged=None, steps=[("drop", 1), ("update", 0), ("compact", 0), ("restore", 0), ("append", 0)]
)
@example(
    tagged=None,
    steps=[
        ("compact", 3),
        ("update", 0),
        ("drop", 4),
        ("swap", 3),
        ("rename", 2),
        ("restore", 2),
        ("update", 3),
        ("drop", 4),
        ("rename", 1),
    ],
)
@example(tagged=1, steps=[("add", 1), ("append", 0), ("update", 0), ("update", 0), ("restore", 2)])
def test_cleanups_preserve_the_remaining_feed(steps: Sequence[Step], tagged: int | None) -> None:
    """Columns are followed through a restore even if the restored version was removed.

    A tag keeps one older version.
    """
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(ds, 1, 2, 3))
    for step in steps:
        ds = do(ds, step)
    if tagged is not None:
        ds.tags.create("kept", min(tagged, ds.version))
    before, lost = feeds(ds, 1), lost_lineages(ds)
    for first in range(2, ds.version + 1):
        if first in lost:
            continue
        ds.cleanup(retain_versions=ds.version - first + 1)
        for interval, feed in feeds(lance_stream.open_dataset(ds.uri), first).items():
            assert feed == before[interval], (interval, f"cleaned up before {first}")


@pytest.mark.parametrize("alternate", [False, True])
def test_restores_cost_one_comparison_per_version(
    alternate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore reaches back over earlier ones. Unless each version is compared once, and in
    ascending order, time grows with the cube of their number, and Python's stack overflows.
    """
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(ds, 1, 2, 3))
    ds = ds.upsert(rows(ds, 1), on="id").upsert(rows(ds, 2), on="id")
    for _ in range(40):
        ds = ds.restore(ds.version - 1 if alternate else 1)
    expected = ds.changes(ds.version - 1).read_all()
    num_reads = depth = deepest = 0
    read, compare = CachedLog.read, RowDifferences._compare

    def counting_read(*arguments: Any) -> Any:
        nonlocal num_reads
        num_reads += 1
        return read(*arguments)

    def measured_compare(*arguments: Any, **options: Any) -> Any:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        result = compare(*arguments, **options)
        depth -= 1
        return result

    monkeypatch.setattr(CachedLog, "read", counting_read)
    monkeypatch.setattr(RowDifferences, "_compare", measured_compare)
    assert ds.changes(ds.version - 1, column_backfills=False).read_all() == expected
    assert deepest <= 3
    assert 0 < num_reads < 15 * ds.version


@pytest.mark.parametrize("column_backfills", [False, True])
def test_columns_added_in_gaps_change_nothing(column_backfills: bool) -> None:
    """A cleanup has removed the versions that added a column of nulls and moved its rows; without
    them, a comparison of both ends must not report each row that has the column.
    """
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(ds, 1, 2, 3))
    ds.tags.create("kept", 1)
    for step in (("add", 0), ("update", 0), ("drop", 0), ("compact", 0)):
        ds = do(ds, step)
    ds.cleanup(retain_versions=1)
    changes = lance_stream.open_dataset(ds.uri).changes(
        1, ds.version, deduplication_mode="netChanges", column_backfills=column_backfills
    )
    events = [(row["id"], row["_change_type"]) for row in changes.read_all().to_pylist()]
    assert events == [(1, "update_preimage"), (1, "update_postimage")]


@pytest.mark.parametrize("removed", [1, 2])
def test_versions_in_hand_may_be_removed(removed: int) -> None:
    """Without the versions between, row versions tell which rows changed."""
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(ds, 1, 2, 3))
    older = ds.table
    for step in (("update", 0), ("compact", 0)):
        ds = do(ds, step)
    ds.table.store.delete(manifest_path(removed))
    changed = RowDifferences(ds.table).changes(older, ds.table)
    assert changed.is_ambiguous
    assert [update.offsets.tolist() for update in changed.updates] == [[2]]
