"""Upserts of some columns: rows stay in place where that costs less."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import LanceStreamError
from lance_stream.file.reader import TAIL_BYTES
from lance_stream.read import fragment
from lance_stream.row_updates import in_place, in_place_costs
from lance_stream.row_updates.in_place import columns_that_may_stay, fragments_that_stay
from lance_stream.row_updates.in_place_costs import FragmentCosts
from lance_stream.schema.fields import TOMBSTONED_ID, Field
from lance_stream.snapshot.history import read_transaction
from lance_stream.storage.local_store import LocalStore
from lance_stream.table.fragments.fragment import LineageColumn
from lance_stream.table.indices import IndexMetadata, encode_index_section
from lance_stream.table.manifest import FragmentList
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.upsert import attempts
from lance_stream.upsert.update_planner import plan_update

WIDE = 5_000
"""Bytes of the column that most batches here lack."""

NUM_ROWS = 100
"""Rows of each of two fragments."""


def wide_rows(first: int, stop: int) -> pa.Table:
    dice = np.random.default_rng(first)
    return pa.table(
        {
            "id": pa.array(range(first, stop), pa.int64()),
            "price": [float(number) for number in range(first, stop)],
            "place": [{"x": number, "y": str(number)} for number in range(first, stop)],
            "blob": pa.array([dice.bytes(WIDE) for _ in range(first, stop)]),
        }
    )


def prices(ids: Sequence[int], price: float = -1.0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "price": [price] * len(ids)})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t")


@pytest.fixture
def wide(uri: str) -> lance_stream.Dataset:
    ds = lance_stream.create_dataset(uri, wide_rows(0, NUM_ROWS))
    return ds.append(wide_rows(NUM_ROWS, 2 * NUM_ROWS))


def operation(ds: lance_stream.Dataset) -> Update:
    transaction = read_transaction(ds.table.store, ds.table.manifest)
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    return transaction.operation


def is_in_place(ds: lance_stream.Dataset) -> bool:
    return operation(ds).update_mode is UpdateMode.REWRITE_COLUMNS


def lineage(ds: lance_stream.Dataset) -> dict[int, tuple[int, int, int]]:
    """Return the row id and both row versions of each row, by its key."""
    columns = ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")
    rows = ds.scan(["id"], with_row_id=True, with_row_versions=True).read_all().to_pylist()
    return {row["id"]: tuple(row[name] for name in columns) for row in rows}


def rows_of(ds: lance_stream.Dataset) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.to_table().sort_by("id").to_pylist()
    return rows


def check_feed(older: lance_stream.Dataset, newer: lance_stream.Dataset) -> Counter[str]:
    """Check snapshot(a) + changes(a, b) = snapshot(b), and count the changes by their kind."""
    rows = {row["id"]: row for row in rows_of(older)}
    kinds: Counter[str] = Counter()
    for change in newer.changes(older.version).read_all().to_pylist():
        kind = change["_change_type"]
        kinds[kind] += 1
        values = {name: change[name] for name in newer.schema.names}
        if kind in ("update_preimage", "delete"):
            assert rows.pop(change["id"]) == values
        else:
            rows[change["id"]] = values
    assert [rows[row] for row in sorted(rows)] == rows_of(newer)
    return kinds


def data_files(uri: str) -> set[str]:
    return {path.name for path in (Path(uri) / "data").iterdir()}


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many bytes of data files were read, by the function of the store."""
    counts: Counter[str] = Counter()
    read_ranges, read_end = LocalStore.read_ranges, LocalStore.read_end

    def ranges(store: LocalStore, path: str, spans: Any) -> Any:
        if path.startswith("data/"):
            counts["ranges"] += sum(span.size_bytes for span in spans)
        return read_ranges(store, path, spans)

    def end(store: LocalStore, path: str, num_bytes: int) -> Any:
        if path.startswith("data/"):
            counts["ends"] += num_bytes
        return read_end(store, path, num_bytes)

    monkeypatch.setattr(LocalStore, "read_ranges", ranges)
    monkeypatch.setattr(LocalStore, "read_end", end)
    return counts


@pytest.mark.floors
def test_in_place_updates_move_no_rows(wide: lance_stream.Dataset, uri: str) -> None:
    """Moving wide rows to change one column rewrites the whole table; row ids, stamps and the feed
    must still show the update.
    """
    before = lineage(wide)
    changed = wide.upsert(prices([3, 5, 150, 500]), on="id")
    assert is_in_place(changed)
    fragments = changed.table.manifest.fragments
    assert [fragment.physical_rows for fragment in fragments] == [NUM_ROWS, NUM_ROWS, 1]
    assert all(fragment.deletion_file is None for fragment in fragments)
    assert [len(fragment.files) for fragment in fragments] == [2, 2, 1]
    assert all(fragment.files[0].field_ids.count(TOMBSTONED_ID) == 1 for fragment in fragments[:2])
    after = lineage(changed)
    version = changed.version
    for key, (row_id, created, updated) in before.items():
        stamp = version if key in (3, 5, 150) else updated
        assert after[key] == (row_id, created, stamp)
    assert after[500][1:] == (version, version)
    assert check_feed(wide, changed) == {
        "update_preimage": 3,
        "update_postimage": 3,
        "insert": 1,
    }
    assert rows_of(changed)[-1] == {"id": 500, "price": -1.0, "place": None, "blob": None}


def test_rows_get_their_own_values(wide: lance_stream.Dataset) -> None:
    """A batch has rows of several fragments, in any order."""
    ids = [150, 3, 199, 7, 100, 99, 5]
    values = [-float(number) for number in ids]
    changed = wide.upsert(pa.table({"id": ids, "price": values}), on="id")
    assert is_in_place(changed)
    assert all(fragment.deletion_file is None for fragment in changed.table.manifest.fragments)
    expected = [-float(number) if number in ids else float(number) for number in range(200)]
    assert [row["price"] for row in rows_of(changed)] == expected
    structs = [{"x": -number} for number in ids]
    moved = changed.upsert(pa.table({"id": ids, "place": structs}), on="id")
    assert is_in_place(moved)
    assert [row["place"] for row in rows_of(moved)] == [
        {"x": -number if number in ids else number, "y": str(number)} for number in range(200)
    ]


def test_no_other_column_is_read(
    uri: str, wide: lance_stream.Dataset, bytes_read: Counter[str]
) -> None:
    """The saving is lost if the update reads the wide columns that it does not change."""
    ds = lance_stream.open_dataset(uri)
    changed = ds.upsert(prices(range(0, 2 * NUM_ROWS, 2)), on="id")
    assert is_in_place(changed)
    # the ends of two files, with their metadata, then keys and prices
    assert bytes_read["ranges"] + bytes_read["ends"] < 2 * (TAIL_BYTES + NUM_ROWS * 16 + 2_000)
    assert 2 * NUM_ROWS * WIDE > 5 * TAIL_BYTES
    written = sum(fragment.files[-1].size_bytes for fragment in changed.table.manifest.fragments)
    assert written < 2 * NUM_ROWS * 8 + 2 * 2_000


@pytest.mark.floors
def test_structs_keep_their_other_fields(wide: lance_stream.Dataset) -> None:
    """Fields of a struct that the batch lacks have to be copied into the new column file."""
    wide = wide.delete("id = 8")
    new = pa.table({"id": [7, 9], "place": [{"x": -7}, None]})
    changed = wide.upsert(new, on="id")
    assert is_in_place(changed)
    structs = {row["id"]: row["place"] for row in rows_of(changed)}
    assert structs[7] == {"x": -7, "y": "7"}
    assert structs[9] is None
    assert structs[10] == {"x": 10, "y": "10"}
    assert check_feed(wide, changed).total() == 4


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_deleted_rows_may_keep_forbidden_nulls(uri: str, version: str) -> None:
    """A column may have become non-nullable after the rows with nulls were deleted."""
    rows = wide_rows(0, 20).set_column(1, "price", pa.array([None] + [1.0] * 19))
    ds = lance_stream.create_dataset(uri, rows, file_version=version).delete("id = 0")
    strict = ds.alter_columns({"path": "price", "nullable": False})
    changed = strict.upsert(prices([3, 5]), on="id")
    assert is_in_place(changed)
    assert lance.dataset(uri).to_table(["id", "price"]).equals(changed.to_table(["id", "price"]))
    assert check_feed(strict, changed)["update_postimage"] == 2
    again = changed.update({"price": "price + 1"}, where="id < 10")
    assert is_in_place(again)
    assert again.to_table(["price"])["price"].to_pylist()[:5] == [2.0, 2.0, 0.0, 2.0, 0.0]
    assert lance.dataset(uri).to_table(["id", "price"]).equals(again.to_table(["id", "price"]))


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_deleted_structs_may_keep_forbidden_nulls(uri: str, version: str) -> None:
    """A part of a struct may have become non-nullable, too."""
    structs = [{"x": None, "y": ""}, None, *({"x": number, "y": ""} for number in range(18))]
    rows = wide_rows(0, 20).set_column(2, "place", pa.array(structs))
    ds = lance_stream.create_dataset(uri, rows, file_version=version).delete("id < 2")
    strict = ds.alter_columns(
        {"path": "place.x", "nullable": False}, {"path": "place", "nullable": False}
    )
    changed = strict.upsert(pa.table({"id": [3], "place": [{"x": -7, "y": "new"}]}), on="id")
    assert is_in_place(changed)
    expected = [*structs[2:3], {"x": -7, "y": "new"}, *structs[4:]]
    assert changed.to_table(["place"])["place"].to_pylist() == expected
    assert check_feed(strict, changed)["update_postimage"] == 1


def test_deletes_share_the_version_of_updates(wide: lance_stream.Dataset) -> None:
    """Readers must see updates in place, deletes and inserts of one batch together."""
    wide = wide.delete("id < 2")
    new = prices([1, 5, 6, 7, 120]).append_column("gone", pa.array([False, True] + 3 * [False]))
    changed = wide.upsert(new, on="id", delete_when="gone", except_columns=["gone"])
    assert is_in_place(changed)
    assert check_feed(wide, changed) == {
        "update_preimage": 3,
        "update_postimage": 3,
        "delete": 1,
        "insert": 1,
    }
    assert changed.verify() == wide.verify()


def test_columns_can_be_rewritten_repeatedly(wide: lance_stream.Dataset, uri: str) -> None:
    """The previous column file is dropped, and the remaining columns of the first file stay."""
    now = wide
    for number in range(4):
        older, now = now, now.upsert(prices(range(10, 20), -number), on="id")
        assert check_feed(older, now)["update_postimage"] == 10
    now = now.upsert(pa.table({"id": [11], "place": [{"x": 1, "y": "one"}]}), on="id")
    assert [len(fragment.files) for fragment in now.table.manifest.fragments] == [3, 1]
    compacted = now.compact()
    assert rows_of(compacted) == rows_of(now)
    assert lineage(compacted) == lineage(now)
    assert all(len(fragment.files) == 1 for fragment in compacted.table.manifest.fragments)
    compacted.cleanup(older_than="0 seconds", delete_unverified=True)
    named = {
        file.path for fragment in compacted.table.manifest.fragments for file in fragment.files
    }
    assert data_files(uri) == named


def test_batches_without_updates_keep_their_rows(
    wide: lance_stream.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fragment is read in several batches, most of which have no row that changes."""
    monkeypatch.setattr(fragment, "MAX_BATCH_ROWS", 20)
    now = wide.upsert(prices([5, 6, NUM_ROWS - 1], -1), on="id")
    assert is_in_place(now)
    assert check_feed(wide, now)["update_postimage"] == 3
    expected = [
        {**row, "price": -1} if row["id"] in (5, 6, NUM_ROWS - 1) else row for row in rows_of(wide)
    ]
    assert rows_of(now) == expected


def test_fragments_are_decided_one_by_one(
    wide: lance_stream.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one fragment move while those of another stay, in one version."""
    stays = FragmentCosts.is_cheaper_in_place
    monkeypatch.setattr(
        FragmentCosts, "is_cheaper_in_place", property(lambda costs: costs.num_changed > 1)
    )
    before = lineage(wide)
    changed = wide.upsert(prices([1, 2, 120, 700]), on="id")
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", stays)
    assert is_in_place(changed)
    deleted = [fragment.deletion_file is not None for fragment in changed.table.manifest.fragments]
    assert deleted == [False, True, False]
    assert {key: row[:2] for key, row in lineage(changed).items() if key != 700} == {
        key: row[:2] for key, row in before.items()
    }
    assert check_feed(wide, changed)["update_postimage"] == 3
    assert changed.verify() == []


def act_before_the_plan(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another writer commit after the rows of the first attempt have been written."""
    acts = iter([act])

    def plan(*planned: Any) -> Any:
        for pending in acts:
            pending()
        return plan_update(*planned)

    monkeypatch.setattr(attempts, "plan_update", plan)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (lambda ds: ds.delete("id = 3"), {3: -1.0, 5: -1.0}),
        (lambda ds: ds.delete("id = 4"), {3: -1.0, 5: -1.0}),
        (lambda ds: ds.compact(), {3: -1.0, 5: -1.0}),
        (lambda ds: ds.upsert(prices([3], -7.0), on="id"), {3: -1.0, 5: -1.0}),
        (lambda ds: ds.upsert(prices([4], -7.0), on="id"), {3: -1.0, 4: -7.0, 5: -1.0}),
        (lambda ds: ds.update({"price": "-7.0"}, where="id = 4"), {3: -1.0, 4: -7.0, 5: -1.0}),
        (
            lambda ds: ds.upsert(pa.table({"id": [3], "place": [{"x": 0, "y": ""}]}), on="id"),
            {3: -1.0, 5: -1.0},
        ),
        (lambda ds: ds.append(wide_rows(300, 310)), {3: -1.0, 5: -1.0}),
    ],
    ids=[
        "delete",
        "delete beside",
        "compact",
        "upsert",
        "upsert beside",
        "update",
        "another column",
        "append",
    ],
)
def test_concurrent_commits_survive_in_place_updates(
    wide: lance_stream.Dataset,
    uri: str,
    theirs: Callable[[lance_stream.Dataset], object],
    expected: dict[int, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new column file holds a value for every row of the fragment, including those that another
    writer has changed meanwhile.
    """
    act_before_the_plan(monkeypatch, lambda: theirs(lance_stream.open_dataset(uri)))
    changed = wide.upsert(prices([3, 5]), on="id")
    by_id = {row["id"]: row for row in rows_of(changed)}
    assert {key: row["price"] for key, row in by_id.items() if row["price"] < 0} == expected
    assert by_id[5]["blob"] == rows_of(wide)[5]["blob"]
    assert check_feed(wide, changed)
    assert changed.verify() == []


def test_failed_commits_preserve_old_files(
    wide: lance_stream.Dataset, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting the replaced column files before the commit would destroy the table."""
    wide = wide.delete("id = 50")
    before = data_files(uri)

    def fail(*_planned: Any, **_named: Any) -> None:
        raise lance_stream.errors.CommitConflictError("others were faster")

    monkeypatch.setattr("lance_stream.write.planning.commit_operation", fail)
    with pytest.raises(LanceStreamError):
        wide.upsert(prices([3, 5, 150]), on="id")
    assert data_files(uri) == before
    assert rows_of(lance_stream.open_dataset(uri)) == rows_of(wide)


def test_failures_between_fragments_leave_no_file(
    wide: lance_stream.Dataset, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first fragment's file is already written when the second one fails."""
    before = data_files(uri)
    write = in_place.write_columns

    def fail_at_the_second(job: in_place.ColumnsJob, *rest: Any) -> Any:
        if data_files(uri) != before or job.offsets[0] != 3:
            raise LanceStreamError("the disk is full")
        return write(job, *rest)

    monkeypatch.setattr(in_place, "write_columns", fail_at_the_second)
    with pytest.raises(LanceStreamError, match="disk is full"):
        wide.upsert(prices([3, 150]), on="id")
    assert data_files(uri) == before


def test_whole_rows_and_blobs_move(
    uri: str, wide: lance_stream.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with all columns saves nothing in place, and blobs have files beside the column that
    a rewrite would have to copy.
    """
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: True))
    assert not is_in_place(wide.upsert(wide_rows(3, 4), on="id"))
    assert not is_in_place(wide.upsert(wide_rows(3, 4).select(["id"]), on="id"))
    blobs = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("n", pa.int64()),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    ds = lance_stream.create_dataset(f"{uri}_blobs", blobs)
    ds = ds.append(pa.table([[1, 2], [1, 2], [b"x", b"y"]], schema=blobs))
    moved = ds.upsert(pa.table([[1], [b"z"]], schema=pa.schema([blobs[0], blobs[2]])), on="id")
    assert not is_in_place(moved)
    assert is_in_place(moved.upsert(pa.table({"id": [1, 2], "n": [3, 4]}), on="id"))


@pytest.mark.floors
@pytest.mark.parametrize(("index", "stays"), [(pa.int8(), False), (pa.int32(), True)])
def test_full_dictionaries_make_rows_move(uri: str, index: pa.DataType, stays: bool) -> None:
    """Old and new values share one dictionary in the column file, whose index type limits their
    number.
    """

    def codes(names: Sequence[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(range(len(names)), index), list(names))

    stored = wide_rows(0, NUM_ROWS).append_column("code", codes([f"a{n}" for n in range(NUM_ROWS)]))
    ds = lance_stream.create_dataset(uri, stored)
    batch = pa.table(
        {"id": pa.array(range(60), pa.int64()), "code": codes([f"b{n}" for n in range(60)])}
    )
    ds = ds.upsert(batch, "id")
    assert is_in_place(ds) is stays
    code_by_id = dict(zip(*ds.to_table(["id", "code"]).to_pydict().values(), strict=True))
    assert code_by_id == {n: f"{'b' if n < 60 else 'a'}{n}" for n in range(NUM_ROWS)}


def test_rows_of_version_0_1_move(uri: str) -> None:
    """A file of version 0.1 cannot mark a column as no longer used, so a new column file cannot
    replace it.
    """
    rows = wide_rows(0, NUM_ROWS).drop_columns(["place"])
    ds = lance_stream.create_dataset(uri, rows, file_version="0.1")
    changed = ds.upsert(prices([3, 5]), on="id")
    assert not is_in_place(changed)
    assert rows_of(changed)[3]["blob"] == rows["blob"][3].as_py()


@pytest.mark.floors
def test_updates_write_what_they_set(
    wide: lance_stream.Dataset, uri: str, bytes_read: Counter[str]
) -> None:
    """Expressions see the row before the update, even for the columns that are set."""
    wide = wide.delete("id = 21")
    bytes_read.clear()
    changed = lance_stream.open_dataset(uri).update(
        {"price": "id + price * 2", "id": "id + 1000"}, where="id >= 20 AND id < 130"
    )
    assert bytes_read["ranges"] + bytes_read["ends"] < 2 * (TAIL_BYTES + NUM_ROWS * 48)
    assert is_in_place(changed)
    price_by_id = {row["id"]: row["price"] for row in changed.to_table(["id", "price"]).to_pylist()}
    assert price_by_id[19] == 19
    assert price_by_id[1020] == 60
    assert price_by_id[1129] == 3 * 129
    assert len(price_by_id) == 2 * NUM_ROWS - 1
    older, newer = lineage(wide), lineage(changed)
    assert {key + 1000 * (20 <= key < 130): row[:2] for key, row in older.items()} == {
        key: row[:2] for key, row in newer.items()
    }
    assert {row[2] for key, row in newer.items() if key >= 1000} == {changed.version}
    assert {row[2] for key, row in newer.items() if key < 1000} == {1, 2}
    assert is_in_place(changed.update({"price": "0.5"}))
    assert not is_in_place(changed.update({"blob": "CAST('' AS binary)"}, where="id = 3"))


def test_overflowing_updates_leave_no_file(wide: lance_stream.Dataset, uri: str) -> None:
    """The overflow is only noticed while the column file is being written."""
    before = data_files(uri)
    with pytest.raises(LanceStreamError):
        wide.update({"id": "id * 70000000000000000"})
    assert data_files(uri) == before


COSTS = FragmentCosts(
    num_rows=1_000_000,
    num_changed=50_000,
    num_runs=50_000,
    num_columns=1,
    changed_bytes=8_000_000,
    other_bytes=3_000_000_000,
)


@pytest.mark.parametrize(
    ("different", "in_place_is_cheaper"),
    [
        ({}, True),
        ({"num_changed": 100, "num_runs": 100}, False),
        ({"other_bytes": 8_000_000}, False),  # narrow rows
        ({"other_bytes": 8_000_000, "num_changed": 1_000_000, "num_runs": 1}, True),
        ({"changed_bytes": 3_000_000_000}, False),  # as wide as the others
        ({"num_changed": 100, "num_runs": 100, "other_bytes": 10**12}, True),  # blobs
        ({"num_changed": 2_000, "num_runs": 2_000, "other_bytes": 0, "num_side_blobs": 1}, True),
    ],
)
def test_the_cheaper_way_is_chosen(different: dict[str, int], in_place_is_cheaper: bool) -> None:
    """The costs of both ways depend on rows, runs, bytes and blobs, and a wrong estimate makes an
    upsert many times slower.
    """
    costs = FragmentCosts(**(COSTS.__dict__ | different))
    assert costs.is_cheaper_in_place is in_place_is_cheaper


def test_small_updates_open_no_large_fragments(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest alone shows that a single row should move and that many rows may not."""
    num_rows = 20_000
    stored = {"id": range(num_rows), "price": [1.0] * num_rows, "weight": range(num_rows)}
    ds = lance_stream.create_dataset(uri, pa.table(stored))
    calls = []

    def measured(*arguments: Any) -> FragmentCosts:
        calls.append(arguments)
        return in_place_costs.measured(*arguments)

    monkeypatch.setattr(in_place, "measured", measured)
    ds = ds.upsert(prices([3]), on="id")
    assert not is_in_place(ds)
    assert not calls
    ds.upsert(prices(range(0, num_rows, 2)), on="id")
    assert calls


@pytest.mark.parametrize(
    ("changes", "unless_unstable"),
    [
        ({"last_updated_at_versions": None}, True),
        ({"last_updated_at_versions": LineageColumn(("v", 0), 5)}, True),
        ({"files": "of another version"}, False),
    ],
)
def test_rows_of_unstampable_fragments_move(
    wide: lance_stream.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    unless_unstable: bool,
) -> None:
    """Changed in place, these rows would not count as updated, and files of one version do not mix
    with others.
    """
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: True))
    table = wide.table
    first, second = table.manifest.fragments
    fields = tuple(field for field in table.schema.fields if field.name == "price")
    changed = np.array([3, (1 << 32) + 5], np.uint64)
    assert fragments_that_stay(table, changed, fields).all()
    if "files" in changes:
        (file,) = first.files
        changes = {"files": (file, replace(file, file_version=(2, 0)))}
    moving = replace(first, **changes)
    manifest = replace(table.manifest, fragments=FragmentList.of([moving, second]))
    unstable = replace(manifest, reader_feature_flags=0, writer_feature_flags=0)
    for at_any_cost in (False, True):
        for version, expected in ((manifest, False), (unstable, unless_unstable)):
            changed_table = replace(table, manifest=version)
            stays = fragments_that_stay(changed_table, changed, fields, at_any_cost=at_any_cost)
            assert stays.tolist() == [expected, True]


@pytest.mark.parametrize(
    "theirs",
    [
        pa.table({"id": [3], "place": [{"x": -7, "y": "theirs"}]}),
        pa.table({"id": [3, 5, 7], "blob": [b"theirs"] * 3}),
        None,
    ],
)
def test_moved_rows_keep_concurrent_updates(
    wide: lance_stream.Dataset,
    uri: str,
    theirs: pa.Table | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A moved row also carries stored values, which must be those of the version that the commit
    follows.
    """
    stays = [False]
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: stays[0]))
    expected = {row["id"]: row for row in rows_of(wide)}

    def act() -> None:
        ds = lance_stream.open_dataset(uri)
        if theirs is None:
            ds.append(wide_rows(1000, 1001))
            return
        stays[0] = True
        assert is_in_place(ds.upsert(theirs, on="id"))
        stays[0] = False

    act_before_the_plan(monkeypatch, act)
    changed = wide.upsert(prices([3, 5]), on="id")
    assert not is_in_place(changed)
    for row in [] if theirs is None else theirs.to_pylist():
        expected[row["id"]] |= row
    for number in (3, 5):
        expected[number] |= {"price": -1.0}
    actual = {row["id"]: row for row in rows_of(changed) if row["id"] < 1000}
    assert actual == expected


def test_columns_with_zones_do_not_stay(wide: lance_stream.Dataset) -> None:
    """A zone map keeps the zones of old values, which queries would find."""
    (price,) = (field for field in wide.table.schema.fields if field.name == "price")
    (other,) = (field for field in wide.table.schema.fields if field.name == "id")

    def fields_that_stay(index_field: Field | None, num_bytes: int = 0) -> tuple[Field, ...]:
        details = ("/lance.index.pb.ZoneMapIndexDetails", b"")
        manifest = wide.table.manifest
        if index_field is not None:
            index = IndexMetadata(bytes(16), (index_field.id,), "x", 1, details=details)
            manifest = replace(manifest, index_section=encode_index_section([index]))
        table = replace(wide.table, manifest=manifest)
        return in_place.columns_that_may_stay(table, ["price"], ["price"], num_bytes)

    assert fields_that_stay(None) == fields_that_stay(other) == (price,)
    assert fields_that_stay(price) == ()
    assert fields_that_stay(None, in_place._MAX_BYTES) == (price,)
    assert fields_that_stay(None, in_place._MAX_BYTES + 1) == ()


def test_struct_columns_of_old_files_move(uri: str) -> None:
    """A file of version 2.0 has either null structs or others, so that rows cannot be mixed."""
    rows = pa.table({"id": [1, 2], "n": [1, 2], "s": [{"a": 1}, None]})
    for version, can_stay in (("2.0", False), ("2.1", True)):
        table = lance_stream.create_dataset(f"{uri}{version}", rows.schema, version).table
        for names, stays in ((["n"], True), (["s"], can_stay), (["n", "s"], can_stay)):
            fields = columns_that_may_stay(table, names, [], 1)
            assert [field.name for field in fields] == names * stays


def test_many_new_values_move(wide: lance_stream.Dataset) -> None:
    """Old and new values are in one array, which must fit into memory."""
    table = wide.table
    for num_bytes, stays in ((in_place._MAX_BYTES, True), (in_place._MAX_BYTES + 1, False)):
        assert bool(columns_that_may_stay(table, ["price"], [], num_bytes)) == stays


def test_rows_of_long_lineage_move(
    wide: lance_stream.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place, each run of changed rows makes the versions of its fragment longer, which a table
    may limit; and no limit makes it cheaper.
    """
    table = wide.table
    fields = tuple(field for field in table.schema.fields if field.name == "price")
    changed = np.array([3, 5, 7, (1 << 32) + 5], np.uint64)
    stamps = table.manifest.fragments[0].last_updated_at_versions
    assert isinstance(stamps, bytes)
    size = len(stamps) + 3 * 2 * in_place._BYTES_PER_RUN
    for is_cheaper in (True, False):
        monkeypatch.setattr(
            FragmentCosts, "is_cheaper_in_place", property(lambda _, answer=is_cheaper: answer)
        )
        for limit, expected in ((None, True), (size, True), (size - 1, False)):
            monkeypatch.setattr(in_place, "limit_of", lambda _, limit=limit: limit)
            stays = fragments_that_stay(table, changed, fields)
            assert stays.tolist() == [expected and is_cheaper] * 3 + [is_cheaper]
            assert fragments_that_stay(table, changed, fields, at_any_cost=True).all()


def test_sizes_are_read_if_not_stated(wide: lance_stream.Dataset) -> None:
    """Old writers do not state the sizes of files, and 0 bytes would make moving look cheap."""
    table = wide.table
    fields = tuple(field for field in table.schema.fields if field.name == "price")
    fragment = table.manifest.fragments[0]
    (file,) = fragment.files
    offsets = np.array([3], np.uint32)
    silent = replace(fragment, files=(replace(file, size_bytes=0),))
    costs = FragmentCosts.of(table, fragment, fields, offsets)
    assert costs.other_bytes == file.size_bytes
    assert FragmentCosts.of(table, silent, fields, offsets) == costs
    wrong = replace(fragment, files=(replace(file, size_bytes=7),))
    assert FragmentCosts.of(table, wrong, fields, offsets).other_bytes == 7


def test_new_values_get_the_stored_type() -> None:
    """Both kinds of values become one column."""
    stored = pa.record_batch({"s": pa.array(["a", "b", None], pa.large_string()), "n": [1, 2, 3]})
    new = pa.record_batch({"s": ["x", None], "n": [7, 8]})
    rows = in_place._with_new_values(stored, np.array([0, 1]), new)
    assert rows.schema.types == stored.schema.types
    assert rows.to_pydict() == {"s": ["x", None, None], "n": [7, 8, 3]}
