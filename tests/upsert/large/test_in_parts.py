"""An upsert in parts treats keys like an upsert by one process."""

import dataclasses
import math
import shutil
import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.environment import MACHINE
from lance_stream.errors import InvalidInputError, TableReplacedError
from lance_stream.keys import value_comparison
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert import attempts, winners
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.update_planner import PlannedUpdate, plan_update
from lance_stream.upsert.upsert import upsert
from tests.upsert.large.running_parts import upsert_by_parts

Way = Callable[[TableVersion, pa.Table, UpsertRules], UpsertResult]
BY_ID = UpsertRules(("id",))


@pytest.fixture(params=[upsert, upsert_by_parts], ids=["by one process", "in parts"])
def way(request: Any) -> Way:
    chosen: Way = request.param
    return chosen


def table_of(rows: pa.Table) -> TableVersion:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows.schema)
    return ds.append(rows).table


def content(table: TableVersion) -> list[tuple[Any, ...]]:
    """Return the rows by their ids, each with its row id."""
    rows = lance_stream.Dataset(table).scan(with_row_id=True).read_all()
    return sorted(tuple(row) for row in zip(*(column.to_pylist() for column in rows), strict=True))


def test_finer_decimal_keys_are_refused(way: Way) -> None:
    """Rounding a key would update the row of another key."""
    table = table_of(
        pa.table({"id": pa.array([Decimal("-1.50")], pa.decimal128(10, 2)), "x": ["old"]})
    )
    finer = pa.table({"id": pa.array([Decimal("-1.504")], pa.decimal128(10, 3)), "x": ["new"]})
    with pytest.raises(InvalidInputError, match="column 'id' contains a value that does not fit"):
        way(table, finer, BY_ID)
    assert lance_stream.Dataset(table).to_table()["x"].to_pylist() == ["old"]


@pytest.mark.floors
@pytest.mark.parametrize(
    ("stored", "incoming"),
    [
        (pa.array([Decimal("-1.50")], pa.decimal128(10, 2)), pa.decimal128(12, 3)),
        (pa.array([7], pa.uint32()), pa.int64()),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array(["é"], pa.large_string()), pa.string()),
        (pa.array(["é"]), pa.string_view()),
        (pa.array([b"a"]), pa.binary_view()),
        (pa.array([b"ab"], pa.binary(2)), pa.binary()),
        (pa.array([10**9], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([5], pa.timestamp("us", "UTC")), pa.timestamp("us", "Asia/Kolkata")),
        (pa.array([86_400_000], pa.date64()), pa.date32()),
    ],
    ids=str,
)
def test_equal_keys_match_across_types(way: Way, stored: pa.Array, incoming: pa.DataType) -> None:
    """A batch rarely has the exact types of the table, and a missed match would insert a
    duplicate.
    """
    table = table_of(pa.table({"id": stored, "x": ["old"]}))
    result = way(table, pa.table({"id": stored.cast(incoming), "x": ["new"]}), BY_ID)
    assert (result.num_updated, result.num_inserted) == (1, 0)
    assert content(result.table) == [(stored[0].as_py(), "new", 0)]


def test_nanoseconds_distinguish_keys(way: Way) -> None:
    """Python's datetimes have microseconds, so a comparison through them would merge different
    keys.
    """
    ids = pa.array([1, 2, 3], pa.timestamp("ns"))
    table = table_of(pa.table({"id": ids, "x": ["a", "b", "c"]}))
    result = way(table, pa.table({"id": ids.slice(1, 1), "x": ["B"]}), BY_ID)
    rows = lance_stream.Dataset(result.table).to_table()
    pairs = zip(rows["id"].cast(pa.int64()).to_pylist(), rows["x"].to_pylist(), strict=True)
    assert sorted(pairs) == [(1, "a"), (2, "B"), (3, "c")]


def test_nanoseconds_decide_lateness(way: Way) -> None:
    """Two events within a microsecond are common, and truncated sequences would let the older one
    win.
    """
    rules = UpsertRules(("id",), sequence_by="at")
    times = pa.array([1_000_000_002, 1_000_000_001], pa.timestamp("ns"))
    table = table_of(pa.table({"id": [1], "at": times.slice(0, 1), "x": ["new"]}))
    result = way(table, pa.table({"id": [1], "at": times.slice(1, 1), "x": ["old"]}), rules)
    assert (result.num_late, result.num_updated) == (1, 0)
    assert lance_stream.Dataset(result.table).to_table()["x"].to_pylist() == ["new"]


def test_stored_rows_without_a_key_stay(way: Way) -> None:
    """A null in a key column equals no key, so such rows are neither updated nor deleted."""
    table = table_of(pa.table({"id": [1, None], "x": ["a", "b"]}))
    result = way(table, pa.table({"id": [1, 2], "x": ["A", "c"]}), BY_ID)
    assert lance_stream.Dataset(result.table).to_table().sort_by("x").to_pylist() == [
        {"id": 1, "x": "A"},
        {"id": None, "x": "b"},
        {"id": 2, "x": "c"},
    ]


def test_a_failed_part_leaves_no_files(tmp_path: Any) -> None:
    """Neither the files of the failed part nor those of the other parts may remain."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.string(), nullable=False)])
    table = lance_stream.create_dataset(str(tmp_path / "t"), schema).table
    rows = pa.table({"id": range(20), "x": [None if i == 13 else "a" for i in range(20)]})
    with pytest.raises(InvalidInputError, match="'x' must not be null"):
        upsert_by_parts(table, rows, BY_ID, num_parts=8)
    assert not list((tmp_path / "t").rglob("*.lance"))


# --- sequences

BY_SEQUENCE = UpsertRules(("id",), sequence_by="seq")


def winner_of(way: Way, sequences: pa.Array, *batches: list[int]) -> int:
    """Return the place of the row that wins among rows of one key that arrive in batches."""
    rows = pa.table(
        {"id": pa.array([1] * len(sequences)), "seq": sequences, "n": range(len(sequences))}
    )
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows.schema).table
    for indices in batches:
        table = way(table, rows.take(pa.array(indices)), BY_SEQUENCE).table
    numbers: list[int] = lance_stream.Dataset(table).to_table()["n"].to_pylist()
    assert len(numbers) == 1
    return numbers[0]


NESTED = pa.struct([("at", pa.int64()), ("lsn", pa.float64())])
ASCENDING = {
    "NaN": pa.array([-math.inf, 0.0, math.inf, math.nan]),
    "infinite timestamps": pa.array([-(2**63), 0, 2**62, 2**63 - 1], pa.timestamp("us", "UTC")),
    "infinite dates": pa.array([-(2**31), 0, 2**30, 2**31 - 1], pa.date32()),
    "structs": pa.array(
        [{"at": None, "lsn": 9}, {"at": 1, "lsn": None}, {"at": 1, "lsn": 2}, {"at": 2, "lsn": 0}],
        NESTED,
    ),
    "lists": pa.array([[], [None], [1], [1, 0]], pa.list_(pa.int64())),
    "bytes": pa.array([b"", b"\0", b"a", b"\xff"]),
    "booleans": pa.array([False, True]),
}


@pytest.mark.parametrize("name", ASCENDING)
def test_greatest_sequences_win_in_any_order(way: Way, name: str) -> None:
    """Sequences of every type must order rows alike within a batch and across batches."""
    sequences = ASCENDING[name]
    last = len(sequences) - 1
    indices = list(range(len(sequences)))
    assert winner_of(way, sequences, indices) == last
    assert winner_of(way, sequences, indices[::-1]) == last
    assert winner_of(way, sequences, *([position] for position in indices)) == last
    assert winner_of(way, sequences, *([position] for position in indices[::-1])) == last


@pytest.mark.floors
def test_struct_sequences_compare_in_stored_order(way: Way) -> None:
    """The order of the struct's fields in the table counts, not their order in the batch."""
    table = table_of(
        pa.table({"id": [1], "seq": pa.array([{"at": 2, "lsn": 1.0}], NESTED), "x": ["new"]})
    )
    turned = pa.struct([("lsn", pa.float64()), ("at", pa.int64())])
    late = pa.table({"id": [1], "seq": pa.array([{"lsn": 9.0, "at": 1}], turned), "x": ["old"]})
    assert way(table, late, BY_SEQUENCE).num_late == 1
    without = late.set_column(1, "seq", pa.array([{"at": 9}], pa.struct([("at", pa.int64())])))
    with pytest.raises(InvalidInputError, match="without all fields of the struct"):
        way(table, without, BY_SEQUENCE)


def test_maps_do_not_order_rows(way: Way) -> None:
    """Spark does not order maps, so a sequence of this type must be refused before anything is
    written.
    """
    kind = pa.map_(pa.string(), pa.int64())
    rows = pa.table({"id": [1], "seq": pa.array([[("a", 1)]], kind)})
    with pytest.raises(InvalidInputError, match="'seq' cannot order rows"):
        way(table_of(rows), rows, BY_SEQUENCE)


def test_lists_are_not_remembered_as_sequences(way: Way) -> None:
    """Files of remembered deletes cannot store a list as sequence, and the error names the way
    out.
    """
    seq = pa.array([[1, 2]], pa.list_(pa.int64()))
    rows = pa.table({"id": [1], "seq": seq, "d": [True]})
    rules = UpsertRules(("id",), "seq", "d", tombstones=timedelta(days=7))
    with pytest.raises(InvalidInputError, match="omit tombstones"):
        way(table_of(rows), rows, rules)


def test_structs_are_remembered_as_sequences(way: Way) -> None:
    """Late rows must be compared with the struct of the delete field by field, nulls first."""
    rules = UpsertRules(("id",), "seq", "d", ("d",), tombstones=timedelta(days=7))

    def rows(lsn: float | None, *, deletes: bool) -> pa.Table:
        seq = pa.array([{"at": 2, "lsn": lsn}], NESTED)
        return pa.table({"id": [1], "seq": seq, "d": [deletes]})

    table = table_of(rows(0.5, deletes=False).drop(["d"]))
    table = way(table, rows(1.0, deletes=True), rules).table
    for late in (None, 0.75, 1.0):
        table = way(table, rows(late, deletes=False), rules).table
        assert not content(table)
    table = way(table, rows(1.5, deletes=False), rules).table
    assert lance_stream.Dataset(table).to_table()["seq"].to_pylist() == [{"at": 2, "lsn": 1.5}]


@pytest.mark.floors
@pytest.mark.parametrize("infinite", [2**63 - 1, 0])
def test_identical_rows_may_repeat(way: Way, infinite: int) -> None:
    """Sources deliver an event twice, so equal rows with equal sequences are no ambiguity, even
    with NaN and infinite times.
    """
    nested = pa.list_(pa.struct([("at", pa.timestamp("us")), ("x", pa.float64())]))
    rows = pa.table(
        {
            "id": [1, 1],
            "seq": pa.array([infinite] * 2, pa.timestamp("us")),
            "x": pa.array([[{"at": infinite, "x": math.nan}]] * 2, nested),
        }
    )
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows.schema).table
    result = way(table, rows, BY_SEQUENCE)
    assert (result.num_inserted, result.num_late) == (1, 1)
    other = rows.set_column(2, "x", pa.array([[{"at": infinite, "x": 1.0}], []], nested))
    with pytest.raises(InvalidInputError, match="which one is newer is ambiguous"):
        way(table, other, BY_SEQUENCE)


@pytest.mark.parametrize("deletes", [False, True])
def test_columns_not_stored_decide_nothing(way: Way, deletes: bool) -> None:
    """A change that is delivered twice has the same effect although its Kafka offset differs."""
    rules = UpsertRules(("id",), "seq", "op = 'd'", except_columns=("op", "offset"))
    op = ["d", "d"] if deletes else ["c", "u"]
    rows = pa.table({"id": [1, 1], "seq": [5, 5], "x": [1, 1], "op": op, "offset": [7, 8]})
    table = table_of(pa.table({"id": [1], "seq": [4], "x": [0]}))
    result = way(table, rows, rules)
    assert (result.num_updated, result.num_deleted) == ((0, 1) if deletes else (1, 0))
    assert result.num_late == 1
    mixed = rows.set_column(3, "op", pa.array(["u", "d"]))
    with pytest.raises(InvalidInputError, match="which one is newer is ambiguous"):
        way(table, mixed, rules)


def test_deletes_need_no_equal_values(way: Way) -> None:
    """A delete often carries the previous row, completely in one delivery and partially in
    another.
    """
    rules = UpsertRules(("id",), "seq", "op = 'd'", except_columns=("op",))
    rows = pa.table({"id": [1, 1], "seq": [5, 5], "x": [0, None], "op": ["d", "d"]})
    result = way(table_of(pa.table({"id": [1], "seq": [4], "x": [0]})), rows, rules)
    assert (result.num_deleted, result.num_late) == (1, 1)


def test_repeated_rows_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing every repeated row by itself would make a batch with many of them take hours."""
    calls: list[int] = []

    def counted(left: pa.RecordBatch, right: pa.RecordBatch) -> Any:
        calls.append(left.num_rows)
        return value_comparison.same_rows(left, right)

    monkeypatch.setattr(winners, "same_rows", counted)
    rows = pa.table({"id": [1, 2] * 500, "seq": [1] * 1000, "s": [{"a": None}] * 1000})
    result = upsert(table_of(rows.slice(0, 2)), rows, BY_SEQUENCE)
    assert calls == [998]
    assert result.num_late == 998


# --- structs that come without some of their parts

INNER = pa.struct([("x", pa.int64()), ("y", pa.string())])
WHOLE = pa.struct([("a", pa.int64()), ("b", INNER), ("c", pa.list_(pa.int64()))])
STORED = [
    {"a": 1, "b": {"x": 2, "y": "y"}, "c": [3]},
    {"a": 1, "b": None, "c": None},
    None,
    {"a": 9, "b": {"x": 9, "y": "9"}, "c": [9]},
]


@pytest.mark.floors
@pytest.mark.parametrize("applies_changes", [False, True])
def test_missing_struct_fields_keep_their_values(way: Way, applies_changes: bool) -> None:
    """A batch may have only some fields of a struct, and the others must survive, as missing
    columns do.
    """
    table = table_of(pa.table({"id": range(4), "s": pa.array(STORED, WHOLE)}))
    partial = pa.struct([("b", pa.struct([("x", pa.int32())]))])
    values = [{"b": {"x": 7}}, {"b": {"x": 7}}, {"b": {"x": 7}}, None, {"b": {"x": 7}}]
    data = pa.table({"id": range(5), "s": pa.array(values, partial)})
    rules = BY_ID
    if applies_changes:
        data = data.append_column("_change_type", pa.array(["insert"] * 5))
        data = data.append_column("_commit_version", pa.array([3] * 5))
        names = ("_change_type", "_commit_version")
        rules = UpsertRules(("id",), except_columns=names, applies_changes=True)
    result = way(table, data, rules)
    assert (result.num_updated, result.num_inserted) == (4, 1)
    structs = lance_stream.Dataset(result.table).to_table().sort_by("id")["s"].to_pylist()
    assert structs == [
        {"a": 1, "b": {"x": 7, "y": "y"}, "c": [3]},
        {"a": 1, "b": {"x": 7, "y": None}, "c": None},
        {"a": None, "b": {"x": 7, "y": None}, "c": None},
        None,
        {"a": None, "b": {"x": 7, "y": None}, "c": None},
    ]
    again = way(result.table, data, dataclasses.replace(rules, skip_unchanged=True))
    assert (again.num_unchanged, again.is_new) == (5, False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(INNER), pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int64())])))),
        (
            pa.map_(pa.string(), INNER),
            pa.array([[("k", {"x": 1})]], pa.map_(pa.string(), pa.struct([("x", pa.int64())]))),
        ),
        (
            pa.struct([("l", pa.list_(INNER, 1))]),
            pa.array(
                [{"l": [{"x": 1}]}], pa.struct([("l", pa.list_(pa.struct([("x", pa.int64())])))])
            ),
        ),
    ],
    ids=["list", "map", "list in a struct"],
)
def test_missing_fields_in_items_are_refused(way: Way, kind: pa.DataType, value: pa.Array) -> None:
    """Items of lists and maps cannot be matched with the stored ones, so their missing fields
    would be lost.
    """
    table = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64()), ("s", kind)])
    ).table
    with pytest.raises(InvalidInputError, match="lack the field 'y'"):
        way(table, pa.table({"id": [1], "s": value}), BY_ID)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
@pytest.mark.parametrize("tombstones", [None, timedelta(days=7)])
def test_unstored_sequences_ignore_stored_namesakes(
    way: Way, kind: pa.DataType, tombstones: timedelta | None
) -> None:
    """The table's column has another meaning, and possibly another type, so that it neither makes
    rows late nor defines how deletes are remembered.
    """
    stored = pa.table({"id": [1, 2], "at": pa.array([100, 100]).cast(kind), "x": ["old", "old"]})
    rules = UpsertRules(("id",), "at", "x = 'gone'", ("at",), tombstones=tombstones)
    table = way(
        table_of(stored), pa.table({"id": [1, 2], "at": [5, 5], "x": ["new", "gone"]}), rules
    ).table
    table = way(table, pa.table({"id": [1, 2], "at": [4, 4], "x": ["newer", "back"]}), rules).table
    rows = lance_stream.Dataset(table).to_table().sort_by("id").to_pylist()
    at = stored["at"][0].as_py()
    assert rows[0] == {"id": 1, "at": at, "x": "newer"}
    assert rows[1:] == ([] if tombstones else [{"id": 2, "at": None, "x": "back"}])


def test_sequences_can_be_keys(way: Way) -> None:
    """A table of all versions of its rows has the sequence in its key."""
    table = table_of(pa.table({"id": [1, 1], "at": [5, 6], "x": ["a", "b"]}))
    rows = pa.table({"id": [1, 1, 2], "at": [5, 7, 5], "x": ["A", "C", "D"]})
    result = way(table, rows, UpsertRules(("id", "at"), sequence_by="at"))
    stored = (
        lance_stream.Dataset(result.table)
        .to_table()
        .sort_by([("id", "ascending"), ("at", "ascending")])
    )
    assert stored["x"].to_pylist() == ["A", "b", "C", "D"]
    assert (result.num_updated, result.num_inserted) == (1, 2)


def test_sequences_must_be_stored_or_excepted(way: Way) -> None:
    """The table may have lost the column since the stream began."""
    rows = pa.table({"id": [1], "at": [5]})
    with pytest.raises(InvalidInputError, match="the table has no column 'at'"):
        way(table_of(rows.select(["id"])), rows, UpsertRules(("id",), sequence_by="at"))


def test_tombstones_of_other_columns_are_ignored(way: Way) -> None:
    """An upsert that remembers no deletes may have an order that tombstones do not support."""
    rows = pa.table({"id": [1, 2], "at": [5, 5], "list": [[1], [2]]})
    remembering = UpsertRules(("id",), "at", "id = 2", tombstones=timedelta(days=7))
    table = way(table_of(rows), rows, remembering).table
    result = way(table, rows.slice(1), UpsertRules(("id",), sequence_by="list"))
    assert result.num_inserted == 1


def test_none_excludes_no_column() -> None:
    """`except_columns=None` means that every column is stored."""
    rows = pa.table({"id": [1], "x": [1]})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows.schema)
    ds = ds.upsert(rows, on="id", except_columns=None)
    feed = ds.changes(0).read_all()
    assert ds.apply_changes(feed, on="id", except_columns=None).count_rows() == 1


def test_retries_refuse_a_recreated_table(way: Any, tmp_path: Path) -> None:
    """The table was re-created after an attempt had lost to another upsert, so the rows belong to
    a table that no longer exists.
    """
    uri = str(tmp_path / "t")
    rows = pa.table({"id": [1, 2], "x": ["old", "old"]})
    ds = lance_stream.create_dataset(uri, rows.schema).append(rows)
    others = iter([lambda: ds.upsert(pa.table({"id": [1], "x": ["theirs"]}), on="id")])

    def lose() -> int:
        for act in others:
            act()
        return MACHINE.random_id()

    def recreate(_seconds: float) -> None:
        shutil.rmtree(uri)
        lance_stream.create_dataset(uri, rows.schema).append(rows)

    environment = dataclasses.replace(MACHINE, random_id=lose, sleep=recreate)
    ours = pa.table({"id": [1], "x": ["ours"]})
    with pytest.raises(TableReplacedError):
        way(ds.table, ours, BY_ID, environment=environment)
    assert lance_stream.open_dataset(uri).to_table()["x"].to_pylist() == ["old", "old"]


@pytest.mark.parametrize("swapped", ["id", "at"])
def test_retries_follow_renamed_columns(
    way: Any, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two columns have swapped their names since the attempt that lost to another upsert."""
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "other id": [3, 2, 1],
            "at": [5, 5, 9],
            "other at": [5, 9, 5],
            "x": ["a", "b", "c"],
        }
    )
    ds = lance_stream.Dataset(table_of(rows))
    other = f"other {swapped}"

    def act() -> None:
        theirs = pa.table({"id": [1], "at": [6], "x": ["theirs"]})
        changed = ds.upsert(theirs, on="id", sequence_by="at")
        changed.rename_columns({swapped: other, other: swapped})

    acts = iter([act])

    def lose(*planned: Any) -> PlannedUpdate:
        for pending in acts:
            pending()
        return plan_update(*planned)

    monkeypatch.setattr(attempts, "plan_update", lose)
    ours = pa.table({"id": [1, 2, 3], "at": [7, 7, 7], "x": ["A", "B", "C"]})
    rules = UpsertRules(("id",), sequence_by="at")
    result = way(ds.table, ours, rules)
    assert result.attempts == 2
    stored = lance_stream.Dataset(result.table).to_table(["id", "x"]).sort_by("id").to_pylist()
    assert stored == [
        {"id": value, "x": x}
        for value, x in (
            # of the rows (3, "theirs"), (2, "b") and (1, "c"), the last is newer
            ((1, "c"), (2, "B"), (3, "C"))
            if swapped == "id"
            # of the rows (1, "theirs"), (2, "b") and (3, "c"), the second is newer
            else ((1, "A"), (2, "b"), (3, "C"))
        )
    ]
