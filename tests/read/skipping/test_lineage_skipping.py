"""Filters on row ids and versions select the same rows, and open only the files they need."""

import random
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.expressions.predicates import Expression, evaluate_predicate, parse_expression
from lance_stream.read import fragment
from lance_stream.read.scan import plan_scan
from lance_stream.read.skipping import lineage_skipping, page_skipping
from lance_stream.read.skipping.lineage_skipping import (
    fragments_that_may_match,
    lineage_columns_of,
    rows_that_may_match,
)
from lance_stream.read.skipping.row_ranges import bounded_leaves
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import (
    ExternalFile,
    Fragment,
    StoredSequence,
    encode_fragment,
)
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids, encode_row_ids
from lance_stream.table.lineage.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
LINEAGE = ("_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version")


def rows(first: int, stop: int, name: str = "n") -> pa.Table:
    ids = range(first, stop)
    return pa.table({"id": ids, "name": [f"{name}{id_}" for id_ in ids]}, SCHEMA)


def history(*, stable_row_ids: bool = True) -> Dataset:
    """Versions 2 to 6 append ten rows each; then come updates, deletes, an upsert, a compaction."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", SCHEMA, stable_row_ids=stable_row_ids
    )
    for first in range(0, 50, 10):
        dataset = dataset.append(rows(first, first + 10))
    dataset = dataset.update({"id": "id", "name": "'new'"}, "id % 7 = 3")  # version 7: rows move
    dataset = dataset.delete("id IN (1, 2, 31)")  # 8
    return dataset.upsert(rows(45, 55, "u"), on="id")  # 9


@pytest.fixture(scope="module")
def ds() -> Dataset:
    """The history with stable row ids."""
    return history()


def everything(ds: Dataset) -> pa.Table:
    return ds.to_table(with_row_id=True, with_row_address=True, with_row_versions=True)


def watched(ds: Dataset) -> tuple[Dataset, WatchedStore]:
    """Return the table as a process sees it that has not written it, and what reads its files."""
    clear_deleted_offsets()
    store = WatchedStore(ds.table.store)
    inner: Store = store
    return Dataset(replace(ds.table, store=inner, log=ObjectStoreLog(inner))), store


def data_files_of(store: WatchedStore) -> set[str]:
    return {path for _, path in store.calls if path.startswith("data/")}


CREATED = "_row_created_at_version > {b} AND _row_created_at_version <= {e}"
UPDATED = (
    "_row_created_at_version <= {b} AND _row_last_updated_at_version > {b} "
    "AND _row_last_updated_at_version <= {e}"
)


@pytest.mark.parametrize(("b", "e"), [(0, 9), (0, 1), (3, 5), (5, 8), (6, 9), (8, 9), (9, 9)])
def test_queries_of_the_specification_are_right(ds: Dataset, b: int, e: int) -> None:
    """The specification defines inserted and updated rows by these two conditions over row
    versions.
    """
    table = everything(ds).to_pylist()
    inserted = [row["id"] for row in table if b < row["_row_created_at_version"] <= e]
    updated = [
        row["id"]
        for row in table
        if row["_row_created_at_version"] <= b < row["_row_last_updated_at_version"] <= e
    ]
    for text, expected in ((CREATED, inserted), (UPDATED, updated)):
        query = text.format(b=b, e=e)
        assert ds.to_table(["id"], query)["id"].to_pylist() == expected
        assert ds.count_rows(query) == len(expected)


def test_only_matching_files_are_opened(ds: Dataset) -> None:
    """A reader of the latest changes must not pay for the whole table."""
    seen, store = watched(ds)
    assert seen.to_table(["id"], CREATED.format(b=3, e=4)).num_rows == 10
    files = {file.path for value in ds.table.manifest.fragments for file in value.files}
    assert len(files) == 7
    assert len(data_files_of(store)) == 2  # what version 4 appended, and what was updated of it
    deletion_files = {path for _, path in store.calls if path.startswith("_deletions/")}
    assert len(deletion_files) == 2


def test_counting_opens_no_data_file(ds: Dataset) -> None:
    """Row versions and ids are in the manifest, so counting by them needs no column."""
    seen, store = watched(ds)
    assert seen.count_rows(UPDATED.format(b=6, e=9)) == 10
    assert seen.count_rows("_rowid < 10") == 8
    assert not data_files_of(store)


def test_no_match_opens_no_file(ds: Dataset) -> None:
    """The manifest alone shows that no fragment can have a match."""
    seen, store = watched(ds)
    for nothing in ("_row_created_at_version > 9", "_rowid > 1000", "_rowaddr < 0"):
        assert seen.to_table(None, nothing).num_rows == 0
    assert [path for _, path in store.calls if path.startswith(("data/", "_del"))] == []


def test_other_columns_filter_the_remaining_rows(ds: Dataset) -> None:
    """Skipping by row versions must not replace the rest of the condition, nor break
    its negation.
    """
    query = f"{UPDATED.format(b=6, e=9)} AND name = 'new' AND id < 20"
    assert sorted(ds.to_table(["id"], query)["id"].to_pylist()) == [3, 10, 17]
    assert sorted(ds.to_table(["id"], f"NOT ({query})")["id"].to_pylist()) == sorted(
        id_ for id_ in ds.to_table(["id"])["id"].to_pylist() if id_ not in (3, 10, 17)
    )


def test_row_lookups_open_one_file(ds: Dataset) -> None:
    """A lookup of one row must open one data file, wherever compaction has moved the row."""
    rows = everything(ds).to_pylist()[::5]
    assert len(rows) > 1
    for row in rows:
        for name in ("_rowid", "_rowaddr"):
            seen, store = watched(ds)
            table = seen.to_table(["id"], f"{name} = {row[name]}")
            assert table["id"].to_pylist() == [row["id"]]
            assert len(data_files_of(store)) == 1


def test_fragments_are_read_from_matching_rows() -> None:
    """A work unit starts with the first row that can match, and ends with the last."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    for first in (0, 10, 20):
        dataset = dataset.append(rows(first, first + 10))
    (unit,) = plan_scan(dataset.compact().table, ["id"], "_row_created_at_version = 3")
    assert (unit.start, unit.stop) == (10, 20)
    (unit,) = plan_scan(dataset.compact().table, ["id"], "NOT (_row_created_at_version >= 3)")
    assert (unit.start, unit.stop) == (0, 10)
    (unit,) = plan_scan(dataset.compact().table, ["id"], "_row_created_at_version <> 3")
    assert (unit.start, unit.stop) == (0, None)


@pytest.mark.floors
def test_large_id_ranges_are_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter is evaluated on a part of the rows only."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    dataset = dataset.append(rows(0, 30_000))
    evaluated: list[int] = []
    before = fragment.evaluate_predicate

    def counting(predicate: Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
        evaluated.append(batch.num_rows)
        return before(predicate, batch)

    monkeypatch.setattr(fragment, "evaluate_predicate", counting)
    assert dataset.to_table(["id"], "_rowid = 9000")["id"].to_pylist() == [9000]
    assert dataset.to_table(["id"], "_rowaddr IN (1, 29999)")["id"].to_pylist() == [1, 29_999]
    assert sorted(evaluated) == [30_000 % 4096, 4096, 4096]


def test_zones_of_listed_ids_stay_whole() -> None:
    """Listed ids may be in any order even if they have no gaps, so their zone is not split."""
    listed = 8000 + np.random.default_rng(1).permutation(1000).astype(np.uint64)
    ids = np.concatenate([np.arange(8000, dtype=np.uint64), listed])
    parts = [RowIdSequence.from_range(0, 8000), RowIdSequence.from_array(listed)]
    zones = lineage_skipping._zones_of_ids(RowIdSequence.concat(parts))
    zones = zones.split(lineage_skipping._ROWS_PER_ZONE)
    assert len(zones.ends) == 4
    for ids_of_zone, minimum, maximum in zip(
        np.split(ids, zones.ends[:-1]), zones.minima, zones.maxima, strict=True
    ):
        assert minimum <= ids_of_zone.min() <= ids_of_zone.max() <= maximum


def test_verbs_can_filter_by_row_versions(ds: Dataset) -> None:
    """Deletes and updates plan with the same skipping as scans."""
    dataset = history().delete("_row_created_at_version = 4 AND id < 25")
    assert 20 not in dataset.to_table()["id"].to_pylist()
    dataset = dataset.update({"name": "'old'"}, "_row_created_at_version <= 2")
    assert dataset.count_rows("name = 'old'") == 8


def test_row_ids_default_to_addresses() -> None:
    """Without stable row ids the specification defines the id of a row as its address."""
    plain = history(stable_row_ids=False)
    (row,) = plain.to_table(filter="id = 33", with_row_id=True).to_pylist()
    assert plain.to_table(["id"], f"_rowid = {row['_rowid']}")["id"].to_pylist() == [33]


NUMBERS = st.integers(0, 60)


def comparisons() -> st.SearchStrategy[str]:
    ids = st.tuples(st.sampled_from(["_rowid", "id"]), NUMBERS)
    versions = st.tuples(st.sampled_from(LINEAGE[2:]), st.integers(0, 11))
    addresses = st.tuples(
        st.just("_rowaddr"), st.tuples(st.integers(0, 7), st.integers(0, 12)).map(_address)
    )
    compared = st.tuples(
        st.one_of(ids, versions, addresses),
        st.sampled_from(["<", "<=", "=", ">", ">=", "<>"]),
        st.booleans(),
    ).map(
        lambda drawn: (
            f"{drawn[0][1]} {drawn[1]} {drawn[0][0]}"
            if drawn[2]
            else f"{drawn[0][0]} {drawn[1]} {drawn[0][1]}"
        )
    )
    between = st.tuples(st.sampled_from(LINEAGE), NUMBERS, NUMBERS).map(
        lambda drawn: f"{drawn[0]} BETWEEN {drawn[1]} AND {drawn[2]}"
    )
    among = st.tuples(st.sampled_from(LINEAGE), NUMBERS, NUMBERS).map(
        lambda drawn: f"{drawn[0]} IN ({drawn[1]}, {drawn[2]})"
    )
    return st.one_of(compared, between, among)


def _address(index: tuple[int, int]) -> int:
    return index[0] << 32 | index[1]


FILTERS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
            lambda drawn: f"({drawn[0]} {drawn[1]} {drawn[2]})"
        ),
        inner.map(lambda value: f"NOT ({value})"),
    ),
    max_leaves=4,
)


@settings(max_examples=25)
@given(text=FILTERS)
@pytest.mark.essential
def test_filters_choose_exactly_the_matching_rows(ds: Dataset, text: str) -> None:
    """Skipped fragments must have no match, according to the full evaluation of the condition."""
    (rows_there,) = everything(ds).combine_chunks().to_batches()
    chosen = rows_there.filter(evaluate_predicate(parse_expression(text), rows_there))
    assert ds.to_table(["id"], text)["id"].to_pylist() == chosen["id"].to_pylist()


@pytest.mark.oracle
def test_pylance_chooses_the_same_rows(tmp_path: Path) -> None:
    """Row ids and row versions that pylance wrote must have the same meaning for both."""
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 20), uri, enable_stable_row_ids=True, max_rows_per_file=6)
    theirs = lance.write_dataset(rows(20, 30), uri, mode="append")
    theirs.update({"name": "'x'"}, where="id % 4 = 0")
    theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        rows(25, 35)
    )
    theirs = lance.dataset(uri)
    theirs.delete("id = 7")
    theirs.optimize.compact_files()
    theirs = lance.dataset(uri)
    ours = lance_stream.open_dataset(uri)
    for b, e in ((0, 1), (1, 4), (2, 3), (3, 4), (4, 9)):
        for text in (CREATED, UPDATED):
            query = text.format(b=b, e=e)
            table = theirs.to_table(["id", "_rowid"], filter=query)
            assert ours.to_table(["id"], query, with_row_id=True).equals(
                table.cast(pa.schema([("id", pa.int64()), pa.field("_rowid", pa.uint64(), False)]))
            )
        delta = theirs.delta(begin_version=b, end_version=e)
        inserted = [id_ for batch in delta.get_inserted_rows() for id_ in batch["id"].to_pylist()]
        assert ours.to_table(["id"], CREATED.format(b=b, e=e))["id"].to_pylist() == inserted


def test_many_fragments_are_evaluated_at_once() -> None:
    """One evaluation per fragment would make planning slow for tables with many fragments."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    for first in range(30):
        dataset = dataset.append(rows(first, first + 1))
    calls: list[int] = []
    before = page_skipping.evaluate_node

    def counting(node: Any, batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        return before(node, batch)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_skipping, "evaluate_node", counting)
        units = plan_scan(dataset.table, ["id"], CREATED.format(b=10, e=12))
    assert len(units) == 2
    assert calls == [30, 30]


def test_damaged_sequences_fail_when_read(ds: Dataset) -> None:
    """Planning includes the fragment, so the reader reports the error."""
    fragments = ds.table.manifest.fragments
    broken = replace(fragments[1], created_at_versions=b"\xff\xff")
    manifest = replace(ds.table.manifest, fragments=fragments.replaced({1: broken}))
    table = replace(ds.table, manifest=manifest)
    units = plan_scan(table, ["id"], "_row_created_at_version = 2")
    assert fragments.raws[0] in [unit.fragment for unit in units]
    assert encode_fragment(broken) in [unit.fragment for unit in units]
    with pytest.raises(lance_stream.CorruptDataError):
        Dataset(table).to_table(["id"], "_row_created_at_version = 2")


@pytest.mark.parametrize("size", [1, 2, 3, 1024])
def test_zone_bounds_match_their_ids(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that excludes a row id would skip its row."""
    monkeypatch.setattr(lineage_skipping, "_IDS_PER_ZONE", size)
    dice = random.Random(size)
    shuffled = dice.sample(range(1000), 37)
    holes = [number for number in range(2000, 2100) if number % 9]
    for row_ids in ([5], shuffled, [*range(7, 30)], holes, [*range(40), *shuffled, *holes]):
        sequence = decode_row_ids(encode_row_ids(row_ids))
        zones = lineage_skipping._zones_of_ids(sequence)
        assert int(zones.ends[-1]) == len(row_ids)
        starts = [0, *zones.ends.tolist()[:-1]]
        for start, stop, minimum, maximum in zip(starts, *map(list, zones), strict=True):
            some = row_ids[start:stop]
            assert (minimum, maximum) == (min(some), max(some))


def versions(*runs: tuple[int, int]) -> bytes:
    """Encode runs of a version and a number of rows."""
    numbers, lengths = np.array(runs, np.uint64).T
    return encode_row_versions(RowVersionSequence(lengths, numbers))


def fragment_of(
    number: int,
    num_rows: int,
    row_ids: StoredSequence,
    created: StoredSequence | None,
    updated: StoredSequence | None,
) -> Fragment:
    """Return a fragment that has lineage alone."""
    return Fragment(
        number,
        (),
        num_rows,
        row_ids=row_ids,
        created_at_versions=created,
        last_updated_at_versions=updated,
    )


def ids(*row_ids: int) -> bytes:
    return encode_row_ids(np.array(row_ids, np.uint64))


ELSEWHERE = ExternalFile("_rows/1", 0, 10)
FRAGMENTS = FragmentList.of(
    [
        fragment_of(0, 3, ids(0, 1, 2), versions((2, 3)), versions((2, 3))),
        fragment_of(1, 4, ids(9, 3, 8, 4), versions((4, 2), (3, 2)), versions((5, 4))),
        fragment_of(2, 4, ids(10, 11, 12, 13), None, versions((6, 1), (7, 3))),
        fragment_of(3, 0, ids(20, 22), versions((8, 1), (9, 1)), versions((8, 1), (9, 1))),
        fragment_of(4, 2, ELSEWHERE, ELSEWHERE, ELSEWHERE),
        fragment_of(5, 2, ids(30, 31), None, None),
    ]
)
"""Without row versions, rows are of version 1. The number of rows of 3 is unknown, and the lineage
of 4 is in a file: both are always read.
"""


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("_row_created_at_version = 2", [(0, 0, None), (3, 0, None), (4, 0, None)]),
        ("_row_created_at_version = 4", [(1, 0, 2), (3, 0, None), (4, 0, None)]),
        ("_row_created_at_version = 3", [(1, 2, None), (3, 0, None), (4, 0, None)]),
        (
            "_row_created_at_version = 1",
            [(2, 0, None), (3, 0, None), (4, 0, None), (5, 0, None)],
        ),
        ("_row_last_updated_at_version = 7", [(2, 1, None), (3, 0, None), (4, 0, None)]),
        ("_row_last_updated_at_version = 1", [(3, 0, None), (4, 0, None), (5, 0, None)]),
        (
            "_row_created_at_version = 1 AND _row_last_updated_at_version = 6",
            [(2, 0, 1), (3, 0, None), (4, 0, None)],
        ),
        ("_rowid = 11", [(2, 0, None), (3, 0, None), (4, 0, None)]),
        ("_rowid = 4", [(1, 0, None), (3, 0, None), (4, 0, None)]),
        ("_rowid >= 30", [(3, 0, None), (4, 0, None), (5, 0, None)]),
        ("_rowaddr < 4294967296", [(0, 0, None)]),
        ("_rowaddr >= 21474836480", [(5, 0, None)]),
    ],
)
def test_lineage_excludes_fragments_exactly(
    text: str, matches: list[tuple[int, int, int | None]]
) -> None:
    """One fragment too few loses rows, and one too many is read for nothing."""
    predicate = parse_expression(text)
    chosen = fragments_that_may_match(predicate, FRAGMENTS, has_stable_row_ids=True)
    if text.startswith("_rowaddr"):  # known without a number of rows
        chosen = [match for match in chosen if match[0] != 3]
    assert chosen == matches


@pytest.mark.parametrize("stable", [True, False])
def test_row_versions_need_no_stable_ids(stable: bool) -> None:
    """Without stable row ids, a row id is an address; versions are what they are."""
    for text, expected in (
        ("_row_created_at_version = 2", {0, 3, 4}),
        ("_row_last_updated_at_version = 7", {2, 3, 4}),
    ):
        matches = fragments_that_may_match(
            parse_expression(text), FRAGMENTS, has_stable_row_ids=stable
        )
        assert {match[0] for match in matches} == expected
    matches = fragments_that_may_match(
        parse_expression("_rowid < 3"), FRAGMENTS, has_stable_row_ids=stable
    )
    assert {match[0] for match in matches} == {0, 3, 4} if stable else {0}


class NoFiles:
    """Reads no file: sequences outside of the manifest are unknown."""

    def row_ids(self, stored: Any, num_rows: int) -> Any:
        return decode_row_ids(stored, num_rows) if isinstance(stored, bytes) else None

    def row_versions(self, stored: Any, num_rows: int) -> Any:
        return decode_row_versions(stored, num_rows) if isinstance(stored, bytes) else None


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize(
    ("index", "text", "ranges"),
    [
        (0, "_row_created_at_version = 2", [(0, 3)]),
        (0, "_row_created_at_version = 3", []),
        (1, "_row_created_at_version = 3", [(2, 4)]),
        (2, "_row_created_at_version = 1", [(0, 4)]),
        (2, "_row_created_at_version = 2", []),
        (2, "_row_created_at_version = 1 AND _row_last_updated_at_version = 6", [(0, 1)]),
        (4, "_row_created_at_version = 99", [(0, 2)]),
        (4, "_row_created_at_version = 99 OR _row_last_updated_at_version = 1", [(0, 2)]),
        (5, "_row_last_updated_at_version > 1", []),
        (5, "_rowaddr < 21474836480", []),
        (5, "_rowaddr = 21474836481", [(0, 2)]),
    ],
)
def test_lineage_excludes_rows_exactly(
    index: int, text: str, ranges: list[tuple[int, int]], stable: bool
) -> None:
    """The reader of a fragment knows its sequences, except for those in missing files."""
    fragment = FRAGMENTS[index]
    rows = rows_that_may_match(
        parse_expression(text),
        fragment,
        fragment.physical_rows,
        NoFiles(),
        has_stable_row_ids=stable,
    )
    assert [tuple(span) for span in rows.ranges] == ranges


def test_empty_fragments_have_no_zones() -> None:
    """A fragment without rows has neither a first nor a last row."""
    fragment = fragment_of(7, 0, ids(), None, None)
    for text in ("_rowid = 1", "_row_created_at_version = 1", "_rowaddr = 5"):
        predicate = parse_expression(text)
        rows = rows_that_may_match(predicate, fragment, 0, NoFiles(), has_stable_row_ids=True)
        assert not rows.ranges
    assert lineage_columns_of(None) == ()
    assert bounded_leaves(None, ()) == {}
