"""What a history remembers of the events that none of its rows shows."""

import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import BadDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import MAX_FILES_PER_TIER, read_tombstones
from lance_stream.upsert.change_rules import ChangeRules
from lance_stream.upsert.upsert import upsert
from tests.upsert.histories import dimension_models as model
from tests.upsert.histories.dimension_models import Change, batch_of
from tests.upsert.histories.test_histories import HISTORY, RULES, apply, new_history, rows

CITY_ONLY: dict[str, Any] = {"track_history_column_list": ["city"]}


def num_files(ds: Dataset) -> int:
    tombstones = read_tombstones(ds.config)
    return 0 if tombstones is None else len(tombstones.files)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
        (pa.json_(), ['{"a":1}', "[2]", None]),
        (pa.uuid(), [b"a" * 16, b"b" * 16, None]),
        (pa.list_(pa.int8()), [[1], [], None]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
@pytest.mark.parametrize("first", range(3))
def test_untracked_values_keep_their_type(kind: pa.DataType, values: list[Any], first: int) -> None:
    """A late event splits a row, and the value that it had before comes from a file that has no
    dictionaries.
    """
    values = values[first:] + values[:first]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    storage = plain.storage_type if isinstance(plain, pa.BaseExtensionType) else plain
    stored = pa.schema([("id", pa.int64()), ("city", pa.string()), ("v", kind)])
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", lance_stream.history_schema(stored, pa.int64())
    )
    for city, value, sequence in ("A", 0, 1), ("A", 1, 5), ("B", 2, 3):
        array = pa.array([values[value]], storage)
        if pa.types.is_dictionary(kind):
            indices = array.dictionary_encode()
            array = pa.DictionaryArray.from_arrays(
                indices.indices.cast(kind.index_type), indices.dictionary
            )
        if isinstance(kind, pa.BaseExtensionType):
            array = pa.ExtensionArray.from_storage(kind, array)
        batch = pa.table({"id": [7], "city": [city], "v": array, "seq": [sequence]})
        ds = ds.apply_scd2(
            batch, "id", "seq", except_column_list="seq", track_history_column_list="city"
        )
    table = ds.to_table().sort_by("__START_AT")
    assert table.schema.field("v").type == ds.schema.field("v").type
    column = pa.concat_arrays(table["v"].chunks)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    assert table["__START_AT"].to_pylist() == [1, 3, 5]
    assert column.to_pylist() == [values[0], values[2], values[1]]


def test_forgotten_values_come_from_their_row() -> None:
    """A column that was tracked is not remembered, because its value is that of the row around the
    event.
    """
    ds = apply(new_history(), *(Change(1, "A", "x", sequence, "u") for sequence in (1, 5, 9)))
    late = [Change(1, "B", "y", 3, "u"), Change(1, "B", "z", 7, "u")]
    assert rows(apply(ds, *late, **CITY_ONLY)) == [
        model.State(1, "A", "x", 1, 3),
        model.State(1, "B", "y", 3, 5),
        model.State(1, "A", "x", 5, 7),
        model.State(1, "B", "z", 7, 9),
        model.State(1, "A", "x", 9, None),
    ]


def test_tracked_columns_keep_remembered_values() -> None:
    """A batch that tracks a column still meets events from before it was tracked."""
    log = [Change(1, "A", "x", 1, "u"), Change(1, "A", "y", 5, "u")]
    ds = apply(new_history(), *log, **CITY_ONLY)
    assert rows(ds) == [model.State(1, "A", "y", 1, None)]
    ds = apply(ds, Change(1, "B", "z", 3, "u"))
    assert rows(ds) == [
        model.State(1, "A", "x", 1, 3),
        model.State(1, "B", "z", 3, 5),
        model.State(1, "A", "y", 5, None),
    ]


@pytest.mark.parametrize("num_tracked", [0, 1, MAX_FILES_PER_TIER - 1, MAX_FILES_PER_TIER])
def test_joined_files_keep_all_events(num_tracked: int) -> None:
    """A file takes in small ones: all events of a key, but none whose values were not remembered,
    which would become nulls.
    """
    log = [Change(1, "A", "x", 0, "u"), Change(1, "A", "x", 99, "u")]
    ds = apply(new_history(), *log)
    for number in range(MAX_FILES_PER_TIER + 1):
        tracks_both = number < num_tracked
        change = Change(1, "A", "x" if tracks_both else f"y{number}", 10 * number + 10, "u")
        log.append(change)
        ds = apply(ds, change, **({} if tracks_both else CITY_ONLY))
    late = [Change(1, "B", "z", 10 * number + 15, "u") for number in range(MAX_FILES_PER_TIER + 1)]
    ds = apply(ds, *late, **CITY_ONLY)
    if num_tracked < 2:
        assert num_files(ds) < MAX_FILES_PER_TIER
    assert rows(ds) == model.history([*log, *late], ["city"])


@pytest.mark.parametrize("knows_it", [False, True])
def test_values_of_dropped_columns_are_ignored(knows_it: bool, tmp_path: Path) -> None:
    """Another program does not know that the tombstones list the column, and their files still have
    it.
    """
    ds = lance_stream.create_dataset(tmp_path / "t", HISTORY)
    ds = apply(ds, Change(1, "A", "x", 1, "u"), Change(1, "A", "y", 5, "u"), **CITY_ONLY)
    assert read_tombstones(ds.config).values == ("note",)  # type: ignore[union-attr]  # has them
    if knows_it:
        ds = apply(ds, Change(1, "A", "y", 3, "u"), **CITY_ONLY)
    lance.dataset(str(tmp_path / "t")).drop_columns(["note"])
    ds = ds.checkout(None)
    late = batch_of([Change(1, "B", "", 4, "u")]).drop_columns(["note"])
    after = ds.apply_scd2(late, **RULES, **CITY_ONLY).to_table().sort_by("__START_AT")
    assert after.select(["city", "__START_AT"]).to_pylist() == [
        {"city": "A", "__START_AT": 1},
        {"city": "B", "__START_AT": 4},
        {"city": "A", "__START_AT": 5},
    ]


@pytest.mark.parametrize("others", [[], [Change(2, "A", "x", 5, "u")]])
def test_deletes_at_the_start_remove_rows(others: list[Change]) -> None:
    """A delete wins over the event with the same sequence, which may leave a key without rows."""
    log = [Change(1, "A", "x", 5, "u"), *others]
    ds = apply(new_history(), *log)
    ds = apply(ds, Change(1, None, None, 5, "d"))
    assert rows(ds) == model.history(others)
    assert rows(apply(ds, *log)) == model.history(others)


@pytest.mark.parametrize(
    "second", [(1, 3, None), (1, 9, 9), (1, None, 2)], ids=["overlap", "empty", "no start"]
)
def test_broken_histories_are_refused(second: tuple[int, int | None, int | None]) -> None:
    """Another program wrote rows that are no history, and events would be applied to the wrong
    one.
    """
    names = ["id", "__START_AT", "__END_AT"]
    bad = pa.Table.from_pylist(
        [dict(zip(names, values, strict=True)) for values in ((1, 1, 5), second)],
        new_history().schema,
    )
    ds = new_history().append(bad)
    with pytest.raises(
        BadDataError, match=r"the rows of \(id=1\) do not form a history: the row from"
    ):
        apply(ds, Change(1, "A", "x", 7, "u"))
    assert apply(ds, Change(2, "A", "x", 7, "u")).count_rows() == 3


def test_only_stored_columns_have_history() -> None:
    """A misspelled column would be tracked by no batch."""
    for rules in (
        {"track_history_column_list": ["town"]},
        {"track_history_except_column_list": ["town"]},
    ):
        with pytest.raises(InvalidInputError, match="'town' cannot be tracked or excluded"):
            apply(new_history(), Change(1, "A", "x", 1, "u"), **rules)


def test_blobs_have_no_history() -> None:
    """Equal blobs may be different descriptions, so that every event would start a row."""
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = lance_stream.history_schema(pa.schema([("id", pa.int64()), blob]), pa.int64())
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    with pytest.raises(UnsupportedFeatureError, match="the column 'b' holds blobs"):
        ds.apply_scd2(
            pa.table({"id": [1], "b": [b"x"], "seq": [1]}), "id", "seq", except_column_list="seq"
        )


@pytest.mark.parametrize("age", [None, timedelta(days=7)])
def test_ages_count_by_the_store(age: timedelta | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is wrong would let the events of others expire."""
    uris: list[str] = []

    def with_store_clock(store: Any, environment: Environment) -> Environment:
        uris.append(store.uri)
        return environment

    monkeypatch.setattr(
        "lance_stream.upsert.histories.shadowed_events.with_store_clock", with_store_clock
    )
    table: TableVersion = new_history().table
    rules = ChangeRules(True, ("id",), ("seq",), except_column_list=("seq", "op")).upsert_rules()
    rules = replace(rules, tombstones=age)
    upsert(table, batch_of([Change(1, "A", "x", 1, "u")]), rules, environment=MACHINE)
    assert uris == ([] if age is None else [table.store.uri])


def test_equal_sequences_need_equal_events() -> None:
    """Nobody knows which of two rows of one moment came first; one that comes twice is no harm."""
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    history = lance_stream.history_schema(schema, pa.int64())
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", history)
    events = pa.table({"id": [7, 7, 8], "city": ["A", "B", "A"], "seq": [1, 1, 1]})
    with pytest.raises(InvalidInputError, match=r"\(id=7\) have the same 'seq', 1"):
        ds.apply_scd2(events, "id", "seq", except_column_list="seq")
    assert ds.checkout(None).version == ds.version
    twice = pa.concat_tables([events.slice(1), events.slice(1)])
    ds = ds.apply_scd2(twice, "id", "seq", except_column_list="seq")
    assert ds.to_table().select(["id", "city"]).sort_by("id").to_pylist() == [
        {"id": 7, "city": "B"},
        {"id": 8, "city": "A"},
    ]
