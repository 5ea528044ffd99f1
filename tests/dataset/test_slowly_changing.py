"""Scenarios of Spark's AUTO CDC, and what a user sees of them: apply_scd1 and apply_scd2."""

import uuid
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import BadDataError, Dataset, InvalidInputError, UnsupportedFeatureError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import read_tombstones
from lance_stream.upsert.change_rules import ChangeRules
from lance_stream.upsert.histories import shadowed_events
from lance_stream.upsert.rules import FOR_GOOD
from lance_stream.upsert.tombstone_files import DELETE_FILES
from lance_stream.upsert.upsert import upsert
from tests.commit.tables import make_environment

RULES: dict[str, Any] = {
    "keys": "id",
    "sequence_by": "seq",
    "apply_as_deletes": "deletes",
    "except_column_list": ["seq", "deletes"],
}
STORED = pa.schema([("id", pa.int64()), ("name", pa.string())])

Row = tuple[Any, ...]


def uri() -> str:
    return f"memory://{uuid.uuid4()}/t"


def new_history(schema: pa.Schema = STORED, sequence: pa.DataType | None = None) -> Dataset:
    kind = pa.int64() if sequence is None else sequence
    return lance_stream.create_dataset(uri(), lance_stream.history_schema(schema, kind))


def events(*rows: tuple[int, str | None, int]) -> pa.Table:
    """Return events of (id, name, seq); a name of "-" deletes."""
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "name": pa.array([None if row[1] == "-" else row[1] for row in rows], pa.string()),
            "seq": pa.array([row[2] for row in rows], pa.int64()),
            "deletes": [row[1] == "-" for row in rows],
        }
    )


def history(ds: Dataset, *more: str) -> list[Row]:
    """Return the rows of a history as (name, start, end), by key and start.

    What the process has kept of hidden events is forgotten, so the next changes read them.
    """
    DELETE_FILES.forget()
    rows = ds.to_table().sort_by([("id", "ascending"), ("__START_AT", "ascending")]).to_pylist()
    names = ("name", *more, "__START_AT", "__END_AT")
    return [tuple(row[name] for name in names) for row in rows]


def applied(*batches: pa.Table, **rules: Any) -> Dataset:
    ds = new_history()
    for batch in batches:
        ds = ds.apply_scd2(batch, **RULES | rules)
    return ds


ALICE = [(1, "Alice", 5), (1, "Alice", 10), (1, "Alice", 15), (1, "Charlie", 20)]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[(1, "alice", 10)]], [("alice", 10, None)]),
        ([[(1, "alice", 10), (1, "alicia", 20)]], [("alice", 10, 20), ("alicia", 20, None)]),
        ([[(1, "alice", 10)], [(1, "alicia", 20)]], [("alice", 10, 20), ("alicia", 20, None)]),
        ([[(1, "alice", 10), (1, "-", 20)]], [("alice", 10, 20)]),
        ([[(1, "a", 10)], [(1, "-", 20)], [(1, "b", 30)]], [("a", 10, 20), ("b", 30, None)]),
        # A run is one row; a late change of another value splits it where its events are.
        ([ALICE], [("Alice", 5, 20), ("Charlie", 20, None)]),
        (
            [ALICE, [(1, "Bob", 12)]],
            [("Alice", 5, 12), ("Bob", 12, 15), ("Alice", 15, 20), ("Charlie", 20, None)],
        ),
        # A late change prolongs, shortens, splits or joins the rows around it.
        ([[(1, "a", 10)], [(1, "a", 5)]], [("a", 5, None)]),
        ([[(1, "a", 10), (1, "b", 20)], [(1, "b", 15)]], [("a", 10, 15), ("b", 15, None)]),
        ([[(1, "a", 10), (1, "-", 30)], [(1, "b", 20)]], [("a", 10, 20), ("b", 20, 30)]),
        ([[(1, "a", 10), (1, "-", 30)], [(1, "-", 20)]], [("a", 10, 20)]),
        (
            [[(1, "a", 10), (1, "-", 30)], [(1, "-", 20)], [(1, "b", 25)]],
            [("a", 10, 20), ("b", 25, 30)],
        ),
        ([[(1, "a", 10), (1, "b", 20)], [(1, "-", 15)]], [("a", 10, 15), ("b", 20, None)]),
        # A delete that comes before its row ends it, and does so once.
        ([[(1, "-", 20)], [(1, "a", 10)]], [("a", 10, 20)]),
        ([[(1, "-", 20)], [(1, "a", 10)], [(1, "b", 30)]], [("a", 10, 20), ("b", 30, None)]),
        (
            [[(1, "-", 20), (1, "-", 40)], [(1, "a", 10)], [(1, "b", 30)]],
            [("a", 10, 20), ("b", 30, 40)],
        ),
        # Of equal sequences a delete counts, whichever comes first.
        ([[(1, "a", 10)], [(1, "-", 10)]], []),
        ([[(1, "-", 10)], [(1, "a", 10)]], []),
        ([[(1, "a", 10), (1, "-", 10)]], []),
        ([[(1, "a", 5), (1, "b", 10)], [(1, "-", 10)]], [("a", 5, 10)]),
        # Of those that store, the one that arrived later counts.
        ([[(1, "a", 10)], [(1, "b", 10)]], [("b", 10, None)]),
        ([[(1, "a", 10), (1, "a", 10)]], [("a", 10, None)]),
        # Nulls are values.
        ([[(1, None, 10), (1, None, 20)]], [(None, 10, None)]),
        ([[(1, "a", 10), (1, None, 20)]], [("a", 10, 20), (None, 20, None)]),
    ],
)  # fmt: skip
def test_changes_make_a_history(
    batches: list[list[tuple[int, str | None, int]]], expected: list[Row]
) -> None:
    """These scenarios fix what Spark's AUTO CDC promises for type 2, late and repeated events
    included.
    """
    event_batches = [events(*batch) for batch in batches]
    ds = applied(*event_batches)
    assert history(ds) == expected
    assert ds.verify() == []
    again = ds.apply_scd2(event_batches[-1], **RULES)  # nothing to do
    assert again.version == ds.version


def test_late_deletes_spare_later_rows() -> None:
    """The sequence decides which row a delete ends, not its arrival."""
    ds = applied(events((1, "a", 10)), events((1, "b", 30)), events((1, "-", 20)))
    assert history(ds) == [("a", 10, 20), ("b", 30, None)]


def test_ended_rows_keep_their_id() -> None:
    """Consumers of the feed need an update of the row that ends, not a delete and an insert."""
    ds = applied(events((1, "a", 10)))
    ds = ds.apply_scd2(events((1, "b", 20)), **RULES)
    kinds = ds.changes(ds.version - 1).read_all()["_change_type"].to_pylist()
    assert kinds == ["update_preimage", "update_postimage", "insert"]
    late = ds.apply_scd2(events((1, "a", 5)), **RULES)
    kinds = late.changes(ds.version).read_all()["_change_type"].to_pylist()
    assert kinds == ["update_preimage", "update_postimage"]


def test_stored_sequences_start_new_rows() -> None:
    """A stored column that differs is a change, unless it is left out of tracking."""
    schema = pa.schema([*STORED, ("seq", pa.int64())])
    rules = RULES | {"except_column_list": "deletes"}
    ds = new_history(schema).apply_scd2(events((1, "a", 1), (1, "a", 2)), **rules)
    assert history(ds) == [("a", 1, 2), ("a", 2, None)]
    untracked = rules | {"track_history_except_column_list": "seq"}
    ds = new_history(schema).apply_scd2(events((1, "a", 1), (1, "a", 2)), **untracked)
    assert history(ds, "seq") == [("a", 2, 1, None)]


@pytest.mark.parametrize(
    "which",
    [{"track_history_column_list": ["name"]}, {"track_history_except_column_list": ["tags"]}],
)
def test_untracked_values_follow_the_last_event(which: dict[str, Any]) -> None:
    """This applies to lists as well, and a late change brings back the values of the event
    before it.
    """
    schema = pa.schema([*STORED, ("tags", pa.list_(pa.string()))])

    def rows(*tags: tuple[str, list[str] | None, int]) -> pa.Table:
        table = events(*((1, name, seq) for name, _, seq in tags))
        return table.append_column(
            "tags", pa.array([tag for _, tag, _ in tags], pa.list_(pa.string()))
        )

    ds = new_history(schema)
    ds = ds.apply_scd2(rows(("a", ["x"], 1), ("a", None, 3), ("a", ["z"], 5)), **RULES | which)
    assert history(ds, "tags") == [("a", ["z"], 1, None)]
    ds = ds.apply_scd2(rows(("a", ["w"], 2)), **RULES | which)
    assert history(ds, "tags") == [("a", ["z"], 1, None)]
    ds = ds.apply_scd2(rows(("b", [], 4)), **RULES | which)
    assert history(ds, "tags") == [("a", None, 1, 4), ("b", [], 4, 5), ("a", ["z"], 5, None)]
    ds = ds.apply_scd2(rows(("-", None, 3)), **RULES | which)
    assert history(ds, "tags") == [("a", ["w"], 1, 3), ("b", [], 4, 5), ("a", ["z"], 5, None)]


@pytest.mark.parametrize("has_tags", [True, False])
def test_newly_untracked_columns_keep_values(has_tags: bool) -> None:
    """Values of earlier events are in the row, whether or not the changes had them."""
    ds = new_history(pa.schema([*STORED, ("tags", pa.string())]))

    def rows(tag: str, *changes: tuple[str, int]) -> pa.Table:
        table = events(*((1, name, seq) for name, seq in changes))
        return table.append_column("tags", pa.array([tag] * len(changes)))

    before = rows("x", ("a", 1), ("a", 3), ("a", 5), ("a", 7))
    ds = ds.apply_scd2(before if has_tags else before.drop_columns("tags"), **RULES)
    tag = "x" if has_tags else None
    assert history(ds, "tags") == [("a", tag, 1, None)]
    which = {"track_history_except_column_list": ["tags"]}
    ds = ds.apply_scd2(rows("y", ("a", 9)), **RULES | which)
    assert history(ds, "tags") == [("a", "y", 1, None)]
    for number in range(20):  # joins files
        ds = ds.apply_scd2(events((2, "-", number)), **RULES)
    ds = ds.apply_scd2(rows("z", ("b", 4)), **RULES | which)
    assert history(ds, "tags")[:3] == [("a", tag, 1, 4), ("b", "z", 4, 5), ("a", "y", 5, None)]
    ds = ds.apply_scd2(rows("z", ("b", 8)), **RULES | which)
    tracked = [("a", tag, 1, 4), ("b", "z", 4, 5), ("a", tag, 5, 8), ("b", "z", 8, 9)]
    assert history(ds, "tags")[:5] == [*tracked, ("a", "y", 9, None)]


def test_foreign_columns_stay_with_rows() -> None:
    """A column that the changes lack is not tracked, but separates a late row from stored ones."""
    ds = applied(events((1, "a", 10)))
    ds = ds.add_columns(pa.field("score", pa.int64())).update({"score": "7"})
    ds = ds.apply_scd2(events((1, "a", 20), (1, "b", 30)), **RULES)
    assert history(ds, "score") == [("a", 7, 10, 30), ("b", None, 30, None)]
    ds = ds.apply_scd2(events((1, "a", 5)), **RULES)
    assert history(ds, "score") == [("a", None, 5, 10), ("a", 7, 10, 30), ("b", None, 30, None)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("us", "UTC"), [1, 2, 3]),
        (pa.timestamp("ns", "Europe/Berlin"), [1, 2, 3]),
        (pa.string(), ["a", "b", "c"]),
        (pa.date32(), [1, 2, 3]),
        (pa.float64(), [1.0, 2.5, float("nan")]),
        (pa.decimal128(30, 2), [1, 2, 3]),
        (pa.uint64(), [1, 2, 2**64 - 1]),
        (pa.binary(), [b"", b"a", b"b"]),
        (pa.bool_(), [False, True, True]),
    ],
)
def test_sequences_of_every_type_order_changes(kind: pa.DataType, values: list[Any]) -> None:
    """Any type that sorts may be a sequence, whose order must be that of Spark."""
    seq = (
        pa.array(values, pa.int64()).cast(kind)
        if pa.types.is_timestamp(kind)
        else pa.array(values, kind)
    )
    ds = new_history(sequence=kind)
    for index in (2, 0, 1) if len(set(values)) == 3 else (1, 0):
        batch = events((1, f"v{index}", 0)).set_column(2, "seq", seq.slice(index, 1))
        ds = ds.apply_scd2(batch, **RULES)
    names = [row[0] for row in history(ds)]
    assert names == (["v0", "v1", "v2"] if len(set(values)) == 3 else ["v0", "v1"])
    ends = [row[2] for row in history(ds)]
    assert ends[-1] is None
    assert None not in ends[:-1]


def test_sequences_may_have_several_columns() -> None:
    """Log positions are often pairs, compared from left to right."""
    kind = pa.struct([("day", pa.int64()), ("lsn", pa.int64())])
    rules = {"keys": "id", "sequence_by": ["day", "lsn"], "column_list": ["id", "name"]}

    def rows(*days: tuple[str, int, int | None]) -> pa.Table:
        table = events(*((1, name, 0) for name, _, _ in days)).drop(["seq", "deletes"])
        table = table.append_column("day", pa.array([day for _, day, _ in days], pa.int64()))
        return table.append_column("lsn", pa.array([lsn for _, _, lsn in days], pa.int64()))

    ds = new_history(sequence=kind).apply_scd2(rows(("c", 2, 1), ("a", 1, 5)), **rules)
    ds = ds.apply_scd2(rows(("b", 1, 7), ("first", 1, None)), **rules)
    names = [(row[0], row[1]["lsn"], row[2] and row[2]["lsn"]) for row in history(ds)]
    # A null within a sequence comes before all values, as in Spark.
    names.sort(key=lambda row: ["first", "a", "b", "c"].index(row[0]))
    assert names == [("first", None, 5), ("a", 5, 7), ("b", 7, 1), ("c", 1, None)]


def test_type_1_compares_stored_sequences() -> None:
    """Without a stored sequence a late event could not be recognised in a later batch."""
    schema = pa.schema([*STORED, ("seq", pa.int64())])
    rules = RULES | {"except_column_list": "deletes"}
    ds = lance_stream.create_dataset(uri(), schema)
    ds = ds.apply_scd1(events((1, "new", 5), (2, "-", 4)), **rules)
    ds = ds.apply_scd1(events((1, "late", 3), (2, "late", 3), (3, "c", 1), (3, "-", 1)), **rules)
    assert ds.to_table().to_pylist() == [{"id": 1, "name": "new", "seq": 5}]
    with pytest.raises(InvalidInputError, match="add a column '__SEQUENCE' of the type int64"):
        ds.apply_scd1(events((1, "x", 7)), **RULES)


@pytest.mark.parametrize("is_stored", [False, True])
def test_upserts_by_other_sequences_are_refused(is_stored: bool) -> None:
    """Such upserts would leave `__SEQUENCE` unchanged, and an older change would win later."""
    columns = [*STORED, *([("seq", pa.int64())] if is_stored else []), ("__SEQUENCE", pa.int64())]
    ds = lance_stream.create_dataset(uri(), pa.schema(columns))
    rules = RULES | {"except_column_list": ["deletes"] if is_stored else ["seq", "deletes"]}
    if is_stored:
        ds = ds.append(pa.table({"id": [1], "name": ["new"], "seq": [5], "__SEQUENCE": [5]}))
    else:
        ds = ds.apply_scd1(events((1, "new", 5)), **rules)
    later = events((1, "newer", 9)).drop_columns(["deletes"])
    excepted = () if is_stored else ("seq",)
    with pytest.raises(InvalidInputError, match=r"ordered by its column __SEQUENCE .* apply_scd1"):
        ds.upsert(later, "id", sequence_by="seq", except_columns=excepted)
    # A correction, until the next change: its sequence is that of the row before.
    ds = ds.upsert(pa.table({"id": [1], "name": ["corrected"]}), "id")
    assert ds.to_table(["name", "__SEQUENCE"]).to_pylist() == [
        {"name": "corrected", "__SEQUENCE": 5}
    ]


def test_shadowed_events_expire_by_age() -> None:
    """Events that only matter for late arrivals would otherwise fill the table's files."""
    now = [0]
    clock = make_environment(now_nanos=lambda: now[0])
    rules = ChangeRules(
        True,
        ("id",),
        ("seq",),
        "deletes",
        except_column_list=("seq", "deletes"),
        tombstones=timedelta(days=7),
    ).upsert_rules()

    def later(table: TableVersion, days: int, *rows: tuple[int, str, int]) -> TableVersion:
        now[0] += days * 86_400 * 10**9
        return upsert(table, events(*rows), rules, environment=clock).table

    table = later(new_history().table, 1, (1, "-", 20), (2, "-", 20))
    table = later(table, 6, (1, "a", 10))
    table = later(table, 2, (2, "b", 10))
    assert history(Dataset(table)) == [("a", 10, 20), ("b", 10, None)]


def test_shadowed_events_are_merged_into_files() -> None:
    """Each batch adds a file, and hundreds of them would slow down every batch."""
    ds = new_history()
    for number in range(40):
        ds = ds.apply_scd2(events((number, "-", number), (100, "a", number)), **RULES)
    tombstones = read_tombstones(ds.config)
    assert tombstones is not None
    assert len(tombstones.files) < 16
    assert (
        sum(file.num_rows for file in tombstones.files) == 79
    )  # a run's first event is not hidden
    ds = ds.apply_scd2(events(*((number, "x", number - 1) for number in range(1, 40))), **RULES)
    assert ds.count_rows("__END_AT = id") == 39
    ds = ds.apply_scd2(events((100, "b", 20)), **RULES)
    assert history(ds)[-1] == ("a", 21, None)


def test_clones_and_branches_know_shadowed_events() -> None:
    """Streams into them continue from the same point, where a late event must have the same
    effect.
    """
    ds = applied(events((1, "-", 20)))
    clone = ds.shallow_clone(uri())
    ds.branches.create("dev")
    branch = lance_stream.open_dataset(f"{ds.uri}/tree/dev")
    for other in (clone, branch):
        assert history(other.apply_scd2(events((1, "a", 10)), **RULES)) == [("a", 10, 20)]


def test_restores_take_shadowed_events_back() -> None:
    """An event after the restored version must not shape the history any more."""
    ds = applied(events((2, "x", 1)))
    before = ds.version
    ds = ds.apply_scd2(events((1, "-", 20)), **RULES).restore(before)
    assert history(ds.apply_scd2(events((1, "a", 10)), **RULES))[0] == ("a", 10, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": []}, "name the key columns"),
        ({"keys": "key"}, "the key column, 'key', is not in the table"),
        ({"sequence_by": []}, "need an order"),
        ({"sequence_by": "ts"}, "'ts', is not in the data"),
        ({"apply_as_deletes": "deletes ="}, "deletes ="),
        ({"except_column_list": ["id"]}, "key column 'id' cannot be left out"),
        ({"except_column_list": ["sqe"]}, r"'sqe' to leave out \(except_column_list\).*'seq'\?"),
        ({"except_column_list": None, "column_list": ["id", "nme"]}, "did you mean 'name'"),
        ({"track_history_column_list": ["seq"]}, "'seq' cannot be tracked or excluded"),
        ({"track_history_except_column_list": ["nme"]}, "'nme' cannot be tracked or excluded"),
        ({"except_column_list": ["deletes"]}, "no column 'seq'.*with except_column_list"),
        ({"except_column_list": None}, "no columns 'seq', 'deletes'; it has"),
    ],
)
def test_unsuitable_rules_are_refused(change: dict[str, Any], message: str) -> None:
    """Each mistake must be named by its argument, before any row is written."""
    ds = new_history()
    with pytest.raises(InvalidInputError, match=message):
        ds.apply_scd2(events((1, "a", 1)), **RULES | change)
    assert ds.versions()[-1].version == ds.version


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (events((1, "a", 1)).set_column(0, "id", pa.array([None], pa.int64())), "rows have no key"),
        (events((1, "a", 1)).set_column(2, "seq", pa.array([None], pa.int64())), "have no 'seq'"),
        (
            events((1, "a", 1)).set_column(2, "seq", pa.array(["x"])),
            "the sequence 'seq' is string, but",
        ),
        (events((1, "a", 1), (1, "b", 1)), "two different rows with .id=1. have the same 'seq'"),
        (
            events((1, "a", 1)).append_column("__START_AT", pa.array([1])),
            "has a column '__START_AT', a name reserved for histories",
        ),
        (
            events((1, "a", 1)).append_column("__SEQUENCE", pa.array([1])),
            "has a column '__SEQUENCE'",
        ),
    ],
)
def test_ambiguous_events_are_refused(data: pa.Table, message: str) -> None:
    """Null keys, null sequences and ties have no defined position in a history."""
    with pytest.raises(InvalidInputError, match=message):
        new_history().apply_scd2(data, **RULES)


def test_deletes_need_only_key_and_sequence() -> None:
    """Change logs send deletes without values, even for required columns."""
    schema = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    ds = new_history(schema).apply_scd2(events((1, "a", 1), (1, "-", 2)), **RULES)
    assert history(ds) == [("a", 1, 2)]
    with pytest.raises(InvalidInputError, match="'name'"):
        ds.apply_scd2(events((1, None, 3)), **RULES)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (STORED, "no __START_AT and no __END_AT"),
        (pa.schema([*STORED, ("__START_AT", pa.int64())]), "has no __END_AT"),
        (
            pa.schema([*STORED, ("__START_AT", pa.int64()), ("__END_AT", pa.string())]),
            "__START_AT is int64 and __END_AT is string",
        ),
    ],
)
def test_tables_without_history_columns_are_refused(schema: pa.Schema, message: str) -> None:
    """Without both columns of the same type no interval can be stored."""
    with pytest.raises(InvalidInputError, match=message):
        lance_stream.create_dataset(uri(), schema).apply_scd2(events((1, "a", 1)), **RULES)


@pytest.mark.parametrize(
    "bounds",
    [
        [(1, 5), (3, None)],
        [(1, None), (3, 4)],
        [(5, 5)],
        [(5, 2)],
        [(None, None)],
        [(1, 2), (1, 3)],
    ],
)
def test_contradictory_histories_are_refused(bounds: list[Row]) -> None:
    """Overlaps written by other programs cannot be continued, while other keys must still work."""
    rows = [{"id": 1, "name": "a", "__START_AT": start, "__END_AT": end} for start, end in bounds]
    ds = new_history()
    ds = ds.append(pa.Table.from_pylist(rows, schema=ds.schema))
    with pytest.raises(BadDataError, match=r"the rows of \(id=1\) do not form a history"):
        ds.apply_scd2(events((1, "b", 9)), **RULES)
    assert ds.apply_scd2(events((2, "b", 9)), **RULES).count_rows() == len(bounds) + 1


def test_histories_of_others_are_continued() -> None:
    """Histories are often migrated from another system, and late events must fit into them."""
    ds = new_history()
    rows = [{"id": 1, "name": "a", "__START_AT": 1, "__END_AT": 5}]
    rows.append({"id": 1, "name": "b", "__START_AT": 5, "__END_AT": None})
    ds = ds.append(pa.Table.from_pylist(rows, schema=ds.schema))
    ds = ds.apply_scd2(events((1, "c", 3), (1, "d", 9)), **RULES)
    assert history(ds) == [("a", 1, 3), ("c", 3, 5), ("b", 5, 9), ("d", 9, None)]


def test_blobs_have_no_history() -> None:
    """Comparing blobs would read them all."""
    blob = pa.field("photo", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    ds = new_history(pa.schema([*STORED, blob]))
    with pytest.raises(UnsupportedFeatureError, match="'photo' holds blobs"):
        ds.apply_scd2(events((1, "a", 1)), **RULES)


def test_tables_have_rows_or_histories() -> None:
    """Tombstones of an upsert would contradict the shadowed events of a history."""
    ds = applied(events((1, "-", 20)))
    data = events((1, "a", 1)).rename_columns(["id", "name", "__START_AT", "deletes"])
    rules = {"sequence_by": "__START_AT", "delete_when": "deletes", "except_columns": ["deletes"]}
    with pytest.raises(InvalidInputError, match="either current rows or their history"):
        ds.upsert(data, on="id", **rules, tombstones="7 days")


def test_plain_upserts_cannot_rewrite_history() -> None:
    """An upsert by key would change every row of the key; with `__START_AT` it is meant."""
    ds = applied(events((1, "a", 1), (1, "b", 2)))
    before = ds.to_table()
    for key in (1, 5):
        with pytest.raises(InvalidInputError, match="Use apply_scd2, or auto_cdc_sink"):
            ds.upsert(pa.table({"id": [key], "name": ["x"]}), on="id")
    assert lance_stream.open_dataset(ds.uri).to_table().equals(before)
    past = pa.table({"id": [1], "__START_AT": [1], "name": ["A"]})
    ds = ds.upsert(past, on=["id", "__START_AT"])
    assert history(ds) == [("A", 1, 2), ("b", 2, None)]


@pytest.mark.parametrize("name", ["id", "__START_AT", "tags"])
def test_columns_of_shadowed_events_stay_named(name: str) -> None:
    """The stored events name these columns, and could not be applied afterwards."""
    schema = pa.schema([*STORED, ("tags", pa.string())])
    data = events((1, "a", 1), (1, "a", 2)).append_column("tags", pa.array(["x", "y"]))
    ds = new_history(schema).apply_scd2(data, **RULES, track_history_column_list="name")
    with pytest.raises(InvalidInputError, match=f"'{name}' cannot be"):
        ds.rename_columns({name: "other"})


def test_shadowed_events_never_expire_by_default() -> None:
    """Correctness is the default: only the user knows how late an event may come."""
    assert shadowed_events.FOR_GOOD == FOR_GOOD == timedelta.max


def test_reserved_history_columns_are_refused() -> None:
    """Two columns of one name could not be told apart."""
    with pytest.raises(InvalidInputError, match="already has a column '__END_AT'"):
        lance_stream.history_schema(pa.schema([("__END_AT", pa.int64())]), pa.int64())
    with pytest.raises(InvalidInputError, match="history_schema takes a pyarrow"):
        lance_stream.history_schema([("id", pa.int64())], pa.int64())  # type: ignore[arg-type]  # a list
