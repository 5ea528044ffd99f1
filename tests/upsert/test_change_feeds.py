"""The changes of one table applied to another: by key, in the feed's order, in any batches."""

import itertools
from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Limits, Position
from lance_stream.feed.rules import FeedRules
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.upsert.change_feeds import BRINGS, last_changes
from tests.sampling import ALL_CASES

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])


def rows(values: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(values), "x": list(values.values())}, schema=SCHEMA)


def content(ds: lance_stream.Dataset, filter: str | None = None) -> list[dict[str, Any]]:
    return ds.to_table(filter=filter).sort_by("id").to_pylist()


NUMBERS = itertools.count()


def new_table() -> lance_stream.Dataset:
    return lance_stream.create_dataset(f"memory://followed-{next(NUMBERS)}", SCHEMA)


def changes_of(*changes: tuple[int, str, int]) -> pa.RecordBatch:
    """Return a feed's rows, each of a version, a type of change, and a key."""
    versions, types, keys = zip(*changes, strict=True)
    return pa.record_batch(
        {"id": list(keys), "_commit_version": list(versions), "_change_type": list(types)}
    )


def last(batch: pa.RecordBatch) -> dict[int, tuple[int, bool]]:
    """Return for each key the row of the deciding change, and whether it deletes the key."""
    lookup = KeyLookup([batch.column("id")])
    indices, takes_away = last_changes(batch, ["id"], lookup)
    keys = batch.column("id").take(pa.array(indices)).to_pylist()
    return dict(zip(keys, zip(indices.tolist(), takes_away.tolist(), strict=True), strict=True))


# --- which change counts


def test_all_change_types_can_be_applied(empty_table: lance_stream.Dataset) -> None:
    """A change type that the feed gains must also be handled where changes are applied."""
    table = empty_table.append(rows({1: "a", 2: "b"})).update({"x": "'c'"}, where="id = 1")
    types = set(table.delete("id = 2").changes(0).read_all()["_change_type"].to_pylist())
    assert types == set(BRINGS)


def test_newest_versions_of_keys_win() -> None:
    """Order in the feed decides, not the order in which the rows arrive."""
    batch = changes_of(
        (9, "delete", 1), (3, "insert", 1), (5, "insert", 2), (4, "update_postimage", 3)
    )
    assert last(batch) == {1: (0, True), 2: (2, False), 3: (3, False)}


def test_feeds_may_have_no_changes() -> None:
    """A stream commits batches without rows, too."""
    assert last(changes_of((9, "delete", 1)).slice(1)) == {}


def test_removals_precede_additions_within_a_version() -> None:
    """One version may move a key from one row to another, and the removal must not delete the row
    that received it.
    """
    batch = changes_of(
        (7, "insert", 1), (7, "delete", 1), (7, "update_postimage", 2), (7, "update_preimage", 2)
    )
    assert last(batch) == {1: (0, False), 2: (2, False)}


def test_lone_pre_images_delete_their_key() -> None:
    """A filter may drop the post-image when an update moves the row out of the filter."""
    assert last(changes_of((7, "update_preimage", 1))) == {1: (0, True)}


@pytest.mark.parametrize("change", BRINGS)
def test_duplicate_key_changes_are_refused(change: str) -> None:
    """Two rows of one version that do the same to a key show that the columns are not a key."""
    batch = changes_of((6, "insert", 3), (7, change, 5), (7, change, 5), (8, "delete", 5))
    with pytest.raises(InvalidInputError, match=r"1 keys .* \(id=5\).*version 7.*not a key"):
        last(batch)


@pytest.mark.floors
def test_unknown_change_types_are_refused() -> None:
    """Ignoring a change type of another system would make the replica differ silently."""
    with pytest.raises(InvalidInputError, match=r"the change type 'truncate' cannot be applied"):
        last(changes_of((6, "insert", 3), (7, "truncate", 5)))


def test_rows_without_change_columns_are_refused(empty_table: lance_stream.Dataset) -> None:
    """Without type or version the order of changes is unknown, and nothing may be committed."""
    with pytest.raises(InvalidInputError, match=r"no column '_change_type'.*readChangeFeed"):
        empty_table.apply_changes(rows({1: "a"}), on="id")
    no_version = changes_of((6, "insert", 3)).drop_columns(["_commit_version"])
    with pytest.raises(InvalidInputError, match=r"no column '_commit_version'"):
        empty_table.apply_changes(no_version, on="id")
    nothing = changes_of((6, "insert", 3)).set_column(1, "_commit_version", pa.nulls(1, pa.int64()))
    with pytest.raises(InvalidInputError, match=r"1 rows have a null '_commit_version'"):
        empty_table.apply_changes(nothing, on="id")
    assert empty_table.checkout(1).version == lance_stream.open_dataset(empty_table.uri).version


@pytest.fixture
def empty_table(tmp_path: Any) -> lance_stream.Dataset:
    return lance_stream.create_dataset(str(tmp_path / "table"), SCHEMA)


# --- tables that follow


def test_change_columns_are_not_stored(empty_table: lance_stream.Dataset, tmp_path: Any) -> None:
    """Neither the columns of the feed nor those in `except_columns` belong to the replica."""
    source = empty_table.append(rows({1: "a", 2: "b"}))
    ids = pa.schema([pa.field("id", pa.int64())])
    replica = lance_stream.create_dataset(str(tmp_path / "ids"), ids)
    replica = replica.apply_changes(source.changes(0), on="id", except_columns="x")
    assert lance.dataset(replica.uri).to_table().to_pydict() == {"id": [1, 2]}


def test_reinserted_keys_keep_replica_rows(
    empty_table: lance_stream.Dataset, tmp_path: Any
) -> None:
    """A delete and an insert of a key in one batch are an update for the replica, which keeps the
    row id.
    """
    source = empty_table.append(rows({1: "a", 2: "b"}))
    replica = lance_stream.create_dataset(str(tmp_path / "replica"), SCHEMA)
    replica = replica.apply_changes(source.changes(0), on="id")
    source = source.delete("id = 1").append(rows({1: "c"}))
    replica = replica.apply_changes(source.changes(2), on="id")
    types = replica.changes(2).read_all()["_change_type"].to_pylist()
    assert types == ["update_preimage", "update_postimage"]
    assert content(replica) == content(source)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"max_versions": 1}, "kept"),
        ({"max_rows": 2}, None),
        ({"max_rows": 2, "pre_images": False}, "kept"),
    ],
)
def test_split_updates_empty_replica_columns(
    empty_table: lance_stream.Dataset, tmp_path: Any, options: Any, note: str | None
) -> None:
    """The guide names the limits that keep columns which only the replica has."""
    source = empty_table.append(rows({1: "a", 2: "b"}))
    replica = lance_stream.create_dataset(str(tmp_path / "replica"), source.to_table())
    replica = replica.add_columns({"note": "'kept'"})
    source = source.update({"x": "x || '!'"})
    for batch in source.follow(after=2, wait=False, **options):
        replica = replica.apply_changes(batch.rows, on="id")
    expected = [{**row, "note": note} for row in source.to_table().to_pylist()]
    stored = lance.dataset(replica.uri).to_table().to_pylist()
    assert sorted(stored, key=lambda row: row["id"]) == expected


def test_unchanged_rows_can_be_skipped(empty_table: lance_stream.Dataset, tmp_path: Any) -> None:
    """A feed that is delivered twice must not add a version or changes to the
    replica's own feed.
    """
    source = empty_table.append(rows({1: "a", 2: "b"}))
    replica = lance_stream.create_dataset(str(tmp_path / "replica"), SCHEMA)
    replica = replica.apply_changes(source.changes(0), on="id")
    again = replica.apply_changes(source.changes(0), on="id", skip_unchanged=True)
    assert again.version == replica.version


Step = tuple[str, int, int]

VERBS = ["append", "update", "move", "swap", "delete", "upsert", "overwrite", "restore"]

STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(VERBS),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)


def do(ds: lance_stream.Dataset, step: Step) -> lance_stream.Dataset:
    """Change a table, whose ids stay a key."""
    verb, one, other = step
    values = {row["id"]: row["x"] for row in content(ds)}
    top = max(values, default=0) + 1
    if verb == "append":
        return ds.append(rows({top + n: f"new {other}" for n in range(one)}))
    if verb == "update":
        return ds.update({"x": f"'updated {other}'"}, where=f"id % 3 = {one % 3}")
    if verb == "move":  # every key becomes another row's
        return ds.update({"id": f"id + {1 + one % 2}"})
    if verb == "swap":  # pairs of rows get each other's key
        low, high = min(values, default=0), top - 1
        return ds.update({"id": f"{low + high} - id"})
    if verb == "delete":
        return ds.delete(f"id % 4 = {one % 4}")
    if verb == "upsert":
        return ds.upsert(rows({top - one: "upserted", top + other: "upserted"} | {top: "t"}), "id")
    if verb == "overwrite":
        return ds.overwrite(rows(dict.fromkeys(range(one), "overwritten")))
    return ds.restore(1 + other % ds.version)


@settings(max_examples=30 if ALL_CASES else 12)
@given(steps=STEPS, data=st.data())
@pytest.mark.essential
def test_replicas_match_after_any_batching(steps: Sequence[Step], data: st.DataObject) -> None:
    """A consumer chooses the size of its batches, and the replica must be the same after each of
    them.
    """
    source = new_table()
    for step in steps:
        source = do(source, step)
    replica = new_table()
    inner = range(1, source.version)
    ends = sorted(data.draw(st.sets(st.sampled_from(inner)))) if inner else []
    after = 0
    for through in [*ends, source.version]:
        replica = replica.apply_changes(source.changes(after, through), on="id")
        assert content(replica) == content(source.checkout(through))
        after = through
    at_once = new_table()
    assert content(at_once.apply_changes(source.changes(0), on="id")) == content(source)


LIMITS = st.builds(
    Limits,
    versions=st.none() | st.integers(1, 3),
    rows=st.none() | st.integers(1, 7),
    size_bytes=st.none() | st.integers(1, 2000),
)


@settings(max_examples=30 if ALL_CASES else 12)
@given(steps=STEPS, limits=LIMITS, by_updates=st.booleans())
def test_replicas_match_under_any_limits(
    steps: Sequence[Step], limits: Limits, by_updates: bool
) -> None:
    """A batch may end inside a version that moves keys from row to row, and batches may be
    delivered twice or applied row by row in their order.
    """
    source = new_table()
    for step in steps:
        source = do(source, step)
    followed = TableFollower(source.uri, None, FollowerRules(FeedRules(compute_updates=by_updates)))
    replica, row_by_row = new_table(), dict[int, str]()
    start, delivered = Position(0), list[dict[str, Any]]()
    while (end := followed.advance(start, limits)) != start:
        batches = list(read_changes(followed.units(start, end)))
        for delivery in [batches, batches] if batches else []:
            replica = replica.apply_changes(pa.Table.from_batches(delivery), on="id")
        for change in (row for batch in batches for row in batch.to_pylist()):
            delivered.append(change)
            if BRINGS[change["_change_type"]]:
                row_by_row[change["id"]] = change["x"]
            else:
                del row_by_row[change["id"]]
        if not end.num_delivered:
            expected = content(source.checkout(end.version))
            assert content(replica) == expected
            assert dict(sorted(row_by_row.items())) == {row["id"]: row["x"] for row in expected}
        start = end
    assert start.version == source.version
    feed = source.changes(0, compute_updates=by_updates).read_all().to_pylist()
    assert delivered == feed, "limits change neither the rows nor their order"


@settings(max_examples=25 if ALL_CASES else 10)
@given(steps=STEPS)
def test_filtered_changes_maintain_filtered_replicas(
    steps: Sequence[Step],
) -> None:
    """Rows enter and leave a filter by updates, of which the filtered feed
    contains only one half.
    """
    source, replica = new_table(), new_table()
    for step in steps:
        source = do(source, step)
    condition = "x <> 'updated 1' AND id < 12"
    for through in range(1, source.version + 1):
        feed = source.changes(through - 1, through).read_all()
        passes = pc.and_(pc.not_equal(feed["x"], "updated 1"), pc.less(feed["id"], 12))
        replica = replica.apply_changes(feed.filter(passes), on="id")
        assert content(replica) == content(source.checkout(through), condition)
