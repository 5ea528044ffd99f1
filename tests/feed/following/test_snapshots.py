"""A version's rows as inserts, slice by slice."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.following.appended_fragments import walk_appended
from lance_stream.feed.following.snapshots import Snapshot
from lance_stream.feed.intervals import first_version_since, last_version_until
from lance_stream.feed.rules import FeedRules
from lance_stream.feed.steps import walk
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.resolving import open_version
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.table.fragments.fragment import decode_fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import manifest_path

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


def table_of(fragments: Sequence[int], deleted: Sequence[int]) -> tuple[str, list[int]]:
    """Return a table with fragments of these sizes, less deleted rows, and its remaining ids."""
    uri = f"memory://{uuid.uuid4()}/table"
    table = lance_stream.create_dataset(uri, SCHEMA)
    first = 0
    for num_rows in fragments:
        table = table.append(rows(range(first, first + num_rows)))
        first += num_rows
    if deleted:
        table = table.delete(f"id IN ({', '.join(map(str, deleted))})")
    return uri, [number for number in range(first) if number not in deleted]


def ids_of(snapshot: Snapshot, start: int, stop: int | None) -> list[int]:
    batches = read_changes(list(snapshot.units(start, stop)))
    return [value for batch in batches for value in batch.column("id").to_pylist()]


@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 12), max_size=4),
    st.sets(st.integers(0, 40), max_size=20),
    st.lists(st.integers(0, 50), max_size=4),
)
def test_slices_partition_the_live_rows(
    fragments: list[int], deleted: set[int], cuts: list[int]
) -> None:
    """For any fragments, deletions and limits, the slices must be a partition of the live rows."""
    uri, alive = table_of(
        fragments, sorted(offset for offset in deleted if offset < sum(fragments))
    )
    snapshot = Snapshot(open_newest(uri))
    assert snapshot.num_rows == len(alive)
    bounds = [0, *sorted(min(cut, len(alive)) for cut in cuts), len(alive)]
    pieces = [ids_of(snapshot, *bounds[at : at + 2]) for at in range(len(bounds) - 1)]
    assert [len(piece) for piece in pieces] == [
        bounds[at + 1] - bounds[at] for at in range(len(bounds) - 1)
    ]
    assert [value for piece in pieces for value in piece] == alive


def test_snapshot_rows_are_inserts_with_stamps() -> None:
    """The commit version is the snapshot's; the row versions are the rows' own."""
    uri, _ = table_of([3], [])
    lance_stream.open_dataset(uri).update({"name": "'new'"}, where="id = 1")
    (batch,) = [
        *read_changes(
            list(
                Snapshot(open_version(uri, 2), FeedColumns(open_version(uri, 2), ["name"])).units(
                    1, 2
                )
            )
        )
    ]
    assert batch.schema.names[:3] == ["name", "_change_type", "_commit_version"]
    (row,) = batch.to_pylist()
    assert (row["name"], row["_change_type"], row["_commit_version"]) == ("n1", "insert", 2)
    assert (row["_row_created_at_version"], row["_row_last_updated_at_version"]) == (2, 2)


def test_slices_respect_the_row_limit() -> None:
    """Deleted rows do not count, and the last slice ends with the table."""
    snapshot = Snapshot(open_newest(table_of([5, 5, 5], [1, 7])[0]))
    assert snapshot.stop_within(0, rows=4) == 4
    assert snapshot.stop_within(4, rows=100) == 13
    assert snapshot.stop_within(13, rows=1) == 13
    assert snapshot.stop_within(0) == 13


def test_slices_respect_the_size_limit() -> None:
    """Bytes are estimated by the share of a file's rows, across fragments."""
    table = open_newest(table_of([1000, 1000, 1000], [])[0])
    snapshot = Snapshot(table)
    sizes = [
        sum(file.size_bytes for file in fragment.files) for fragment in table.manifest.fragments
    ]
    assert snapshot.stop_within(0, size_bytes=sizes[0]) == 1000
    assert snapshot.stop_within(0, size_bytes=sizes[0] + sizes[1] // 2) == pytest.approx(1500, 1)
    assert snapshot.stop_within(500, size_bytes=sum(sizes)) == 3000
    assert snapshot.stop_within(0, rows=10, size_bytes=sum(sizes)) == 10


@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sets(st.integers(0, 40), max_size=20),
    st.integers(0, 40),
    st.integers(1, 9000),
)
def test_slices_are_as_large_as_allowed(
    fragments: list[int], deleted: set[int], start: int, size_bytes: int
) -> None:
    """A row's share is its fragment's size divided among the live rows."""
    uri, alive = table_of(
        fragments, sorted(offset for offset in deleted if offset < sum(fragments))
    )
    table = open_newest(uri)
    snapshot, start = Snapshot(table), min(start, len(alive))
    shares = [
        Fraction(sum(file.size_bytes for file in fragment.files), int(num_live))
        for fragment, num_live in zip(table.manifest.fragments, table.row_counts.live, strict=True)
        for _ in range(num_live)
    ]
    costs = list(accumulate(shares[start:]))
    fitting = start + sum(cost <= size_bytes for cost in costs)
    stop = snapshot.stop_within(start, size_bytes=size_bytes)
    # A fragment's share is rounded down to bytes.
    assert max(fitting, min(start + 1, len(alive))) <= stop <= max(fitting, start) + 1
    assert snapshot.stop_within(start, rows=3, size_bytes=size_bytes) == min(stop, start + 3)


@pytest.mark.floors
def test_slices_have_at_least_one_row() -> None:
    """A limit below the size of one row must not stop the stream forever."""
    snapshot = Snapshot(open_newest(table_of([10], [])[0]))
    assert snapshot.stop_within(3, size_bytes=1) == 4


def test_empty_versions_have_no_slices() -> None:
    """A snapshot without rows must end, without a division by zero."""
    snapshot = Snapshot(open_newest(table_of([], [])[0]))
    assert snapshot.num_rows == 0
    assert snapshot.stop_within(0, rows=5) == 0
    assert list(snapshot.units()) == []


def test_fragments_without_live_rows_are_skipped() -> None:
    """Other writers keep a fragment whose rows are all deleted."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [0, 1]}))
    ds = ds.append(pa.table({"id": [2, 3]})).append(pa.table({"id": [4, 5]}))
    ds = ds.delete("id = 2")
    fragments = list(ds.table.manifest.fragments)
    file = fragments[1].deletion_file
    assert file is not None
    fragments[1] = replace(fragments[1], deletion_file=replace(file, num_deleted_rows=2))
    manifest = replace(ds.table.manifest, fragments=FragmentList.of(fragments))
    snapshot = Snapshot(ds.table.at(manifest))
    assert snapshot.num_rows == 4
    ids = [decode_fragment(unit.unit.fragment).id for unit in snapshot.units()]
    assert ids == [0, 2]
    sizes = [sum(file.size_bytes or 0 for file in fragment.files) for fragment in fragments]
    assert snapshot.stop_within(0, size_bytes=sizes[0] + sizes[2]) == 4
    assert snapshot.stop_within(0, size_bytes=sizes[0]) == 2


def test_versions_without_time_are_read() -> None:
    """Old writers stored none: such rows have the earliest time."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [0, 1]}))
    ds = ds.append(pa.table({"id": [2]}))
    for version in (1, 2):
        manifest = ds.table.log.read(version)
        data = encode_manifest(replace(manifest, timestamp_nanos=None))
        ds.table.store.write(manifest_path(version), data)
    ds = lance_stream.open_dataset(ds.uri)
    assert ds.table.timestamp is None
    last = ds.table
    appended = list(walk_appended(last, 0, 2, FeedColumns(last, None)))
    units = [
        *Snapshot(last).units(),
        *(unit for step in appended for unit in step.units()),
        *(
            unit
            for step in walk(last, 0, 2, FeedRules(), FeedColumns(last, None))
            for unit in step.units()
        ),
    ]
    assert {unit.commit_timestamp for unit in units} == {LONG_AGO}
    assert ds.changes(0, deduplication_mode="netChanges").read_all().num_rows == 3
    assert first_version_since(last, LONG_AGO) == 1
    assert last_version_until(last, datetime(2026, 1, 1, tzinfo=UTC)) == 2
