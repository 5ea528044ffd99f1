"""The feed's columns across versions: followed through renames, casts and restores."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.expressions.predicates import parse_predicate
from lance_stream.feed.ancestry import Ancestry
from lance_stream.feed.columns_of_versions import (
    CHANGE_COLUMNS,
    FeedColumns,
    _nullable,
    _required_part,
    _retyped,
    _source,
    columns_of_query,
    split_change_columns,
)
from lance_stream.feed.expected_columns import check_columns
from lance_stream.feed.following.resumed_columns import resumed_columns
from lance_stream.feed.value_conversion import convert
from lance_stream.schema.arrow_schemas import field_to_arrow, from_arrow
from lance_stream.schema.fields import assign_ids
from lance_stream.table.paths import manifest_path

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int32()), ("s", pa.struct([("y", pa.string())]))])
ROW: dict[str, Any] = {"id": 1, "x": 10, "s": {"y": "a"}}


def table(**values: Any) -> pa.Table:
    return pa.table(values)


def images(ds: Dataset, *names: str, after: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    """Each change as the version, the kind and some columns."""
    read = ds.changes(after, **options).read_all()
    columns = ["_commit_version", "_change_type", *names]
    return list(zip(*(read[value].to_pylist() for value in columns), strict=True))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Version 1 has no rows, version 2 has one."""
    where = str(tmp_path / "table")
    dataset = lance_stream.create_dataset(where, SCHEMA)
    dataset.append(pa.Table.from_pylist([ROW], SCHEMA))
    return where


def test_renamed_columns_stay_the_same_column(uri: str) -> None:
    """Consumers use the newest name and expect the whole history under it."""
    lance.dataset(uri).alter_columns({"path": "x", "name": "price"})
    ds = lance_stream.open_dataset(uri)
    assert images(ds, "price") == [(2, "insert", 10)]


def test_cast_columns_keep_their_values(uri: str) -> None:
    """Lance assigns a new field id to a cast column, and the feed reports updates."""
    lance.dataset(uri).alter_columns({"path": "x", "data_type": pa.int64()})
    ds = lance_stream.open_dataset(uri)
    assert images(ds, "x") == [
        (2, "insert", 10),
        (3, "update_preimage", 10),
        (3, "update_postimage", 10),
    ]


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("rename", {"id": "id", "z": "x"}),
        ("cast", {"id": "id", "x": "x"}),
        ("replace", {"id": "id"}),
        ("overwrite", {"id": "id"}),
        ("append", {"id": "id", "x": "x"}),
    ],
)
def test_columns_are_matched_over_gaps(
    tmp_path: Path, stable: bool, change: str, expected: dict[str, str]
) -> None:
    """Shared rows prove that ids mean the same columns, but not that positions do."""
    uri = str(tmp_path / "t")
    values = {"id": pa.array([1]), "x": pa.array([5], pa.int32())}
    dataset = lance.write_dataset(pa.table(values), uri, enable_stable_row_ids=stable)
    if change == "rename":
        dataset.alter_columns({"path": "x", "name": "z"})
    elif change == "cast":
        dataset.alter_columns({"path": "x", "data_type": pa.int64()})
    elif change == "replace":
        dataset.drop_columns(["x"])
        dataset.add_columns({"w": "5"})
    elif change == "overwrite":
        lance.write_dataset(
            pa.table({"id": [1], "w": pa.array([5], pa.int32())}), uri, mode="overwrite"
        )
    else:
        lance.write_dataset(pa.table(values), uri, mode="append")
    newer = lance_stream.open_dataset(uri).table
    older = newer.read_at(1)
    names = [{field.id: field.name for field in some.schema.walk()} for some in (newer, older)]
    matches = Ancestry(newer).match_over_gap(1, newer.version)
    assert {names[0][new]: names[1][old] for new, old in matches.items()} == expected


@pytest.mark.parametrize("arrow", [pa.int64(), pa.string()])
def test_resumed_names_keep_their_type(tmp_path: Path, arrow: pa.DataType) -> None:
    """A column that was renamed keeps its former name in a stream, unless the types differ."""
    ds = lance_stream.create_dataset(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("x", pa.int64())])
    )
    before = ds.table
    ds = ds.rename_columns({"x": "y"}).add_columns(pa.field("x", arrow))
    columns = resumed_columns(ds.table, ["id", "x"], before, {})
    ids = {field.name: field.id for field in before.schema.walk()}
    by_name = {field.name: field.id for field in columns.schema.fields}
    followed = {name: columns.ids_in(before).get(id_) for name, id_ in by_name.items()}
    assert followed == {"id": ids["id"], "x": ids["x"] if arrow == pa.int64() else None}


@pytest.mark.parametrize("is_reused", [False, True])
def test_resumed_names_of_other_columns(tmp_path: Path, is_reused: bool) -> None:
    """A name may be new to a stream, or that of a column whose former name is still another's."""
    schema = pa.schema({"id": pa.int64(), "x": pa.int64(), "z": pa.int64()})
    ds = lance_stream.create_dataset(tmp_path / "t", schema)
    before = ds.table
    ds = ds.rename_columns({"x": "y"})
    ds = ds.rename_columns({"z": "x"}) if is_reused else ds.add_columns({"new": "id"})
    columns = resumed_columns(ds.table, None, before, {})
    ids = {field.name: field.id for field in before.schema.walk()}
    followed = {field.name: columns.ids_in(before).get(field.id) for field in columns.schema.fields}
    other = {"x": ids["z"]} if is_reused else {"z": ids["z"], "new": None}
    assert followed == {"id": ids["id"], "y": ids["x"], **other}


def test_later_nested_types_are_known(tmp_path: Path) -> None:
    """A running reader compares them with its own, part by part."""
    parts = {"a": pa.int32(), "b": pa.string()}
    arrow = {"s": pa.struct(parts), "l": pa.list_(pa.struct(parts)), "v": pa.list_(pa.float32(), 2)}
    schema = pa.schema({"id": pa.int64(), **arrow})
    uri = str(tmp_path / "t")
    row = {"id": 1, "s": {"a": 1, "b": "x"}, "l": [{"a": 1, "b": "x"}], "v": [1.0, 2.0]}
    ds = lance_stream.create_dataset(uri, pa.Table.from_pylist([row], schema))
    dataset = lance.dataset(uri)
    dataset.alter_columns({"path": "s.a", "data_type": pa.int64()}, {"path": "v", "name": "w"})
    newer = lance_stream.open_dataset(uri).table
    types = FeedColumns(ds.table, None).schema_in(newer)
    assert types.names == ["id", "s", "l", "v"]
    assert types.field("s").type == pa.struct({"a": pa.int64(), "b": pa.string()})
    assert types.field("l").type == arrow["l"]
    assert types.field("v").type == arrow["v"]


def test_later_columns_are_null_before(uri: str) -> None:
    """Rows of older versions have no value of a column that was added later."""
    ds = lance_stream.open_dataset(uri).add_columns(pa.field("z", pa.float64()))
    ds = ds.update({"z": "x"})
    assert images(ds, "z") == [
        (2, "insert", None),
        (4, "update_preimage", None),
        (4, "update_postimage", 10.0),
    ]


def test_reused_names_are_other_columns(uri: str) -> None:
    """A dropped column's values must not appear under a new column of its name."""
    lance.dataset(uri).drop_columns(["x"])
    ds = lance_stream.open_dataset(uri).add_columns(pa.field("x", pa.int32()))
    assert images(ds, "x") == [(2, "insert", None)]


def test_reused_field_ids_are_different_columns(uri: str) -> None:
    """A restore resets the counter of field ids, so an id can be reused for another column."""
    ds = lance_stream.open_dataset(uri).add_columns(pa.field("z", pa.string()))
    two = pa.Table.from_pylist([{"id": 2, "x": 20, "z": "text"}], ds.schema)
    ds = ds.append(two).restore(2)
    ds = ds.add_columns(pa.field("z", pa.int32()))
    first, second = (ds.checkout(number).table.schema.fields[-1] for number in (3, 6))
    assert (first.id, first.name) == (second.id, second.name)
    assert images(ds, "id", "z") == [
        (2, "insert", 1, None),
        (4, "insert", 2, None),
        (5, "delete", 2, None),
    ]


def test_restores_across_overwrites_find_columns(uri: str) -> None:
    """An overwrite may reuse ids for other columns, and the restore reverts that."""
    ds = lance_stream.open_dataset(uri)
    ds = ds.overwrite(
        table(z=[1.5], id=["text"], x=pa.array([7], pa.int32()))
    )  # other columns under the same ids
    ds = ds.restore(2)
    assert images(ds, "id", "x", "s", after=1) == [
        (2, "insert", 1, 10, {"y": "a"}),
        (3, "delete", 1, 10, {"y": "a"}),
        (3, "insert", None, 7, None),
        (4, "delete", None, 7, None),
        (4, "insert", 1, 10, {"y": "a"}),
    ]


def test_renames_are_followed_across_overwrites(uri: str) -> None:
    """An overwrite matches columns by name, after the older column was renamed."""
    lance.dataset(uri).alter_columns({"path": "x", "name": "price"})
    ds = lance_stream.open_dataset(uri).overwrite(table(price=[0.5]))
    assert images(ds, "price") == [(2, "insert", 10.0), (4, "delete", 10.0), (4, "insert", 0.5)]


def test_struct_fields_are_followed_like_columns(uri: str) -> None:
    """A path through a renamed struct must reach the old field."""
    lance.dataset(uri).alter_columns({"path": "s", "name": "part"})
    ds = lance_stream.open_dataset(uri)
    assert images(ds, "part", columns=["part.y"]) == [(2, "insert", {"y": "a"})]


def test_structs_without_fields_are_read_whole() -> None:
    """Such structs have no field that a projection could select."""
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64()), ("s", pa.struct([]))])
    )
    ds = ds.append(pa.table({"id": [1], "s": pa.array([{}], pa.struct([]))}))
    assert images(ds.rename_columns({"s": "t"}), "id", "t") == [(2, "insert", 1, {})]


def test_required_columns_may_start_null(uri: str) -> None:
    """A computed column is not nullable, yet older rows have no value of it."""
    lance.dataset(uri).add_columns({"one": "1"})
    ds = lance_stream.open_dataset(uri)
    assert not ds.schema.field("one").nullable
    assert images(ds, "one") == [
        (2, "insert", None),
        (3, "update_preimage", None),
        (3, "update_postimage", 1),
    ]


def test_names_identify_columns_across_gaps(uri: str) -> None:
    """If a version in between is missing, only names and compatible types connect columns."""
    ds = lance_stream.open_dataset(uri).overwrite(table(x=[7], id=["text"], s=["text"]))
    ds = ds.overwrite(table(s=[8], x=[9]))
    ds.table.store.delete(manifest_path(3))
    assert images(ds, "x", "s", after=2, deduplication_mode="netChanges") == [
        (4, "delete", 10, None),
        (4, "insert", 9, 8),
    ]


def test_versions_in_hand_may_be_removed(uri: str) -> None:
    """A cleanup may remove a version, and all between, while a reader still uses it."""
    older = lance_stream.open_dataset(uri).table
    lance.dataset(uri).alter_columns({"path": "x", "data_type": pa.int64()})
    newer = lance_stream.open_dataset(uri).append(pa.Table.from_pylist([ROW])).table
    assert (older.version, newer.version) == (2, 4)
    for number in 1, 2, 3:
        newer.store.delete(manifest_path(number))
    (_, x_before, *_), (_, x_after, *_) = (
        [field.id for field in table.schema.fields] for table in (older, newer)
    )
    assert x_before != x_after
    same = {field.id: field.id for field in newer.schema.walk() if field.id != x_after}
    assert FeedColumns(newer, None).ids_in(older) == {**same, x_after: x_before}
    assert FeedColumns(older, None).ids_in(newer) == {**same, x_before: x_after}


def test_missing_fields_are_named(uri: str) -> None:
    """A reader that needs them must say which one is gone, also inside a struct."""
    ds = lance_stream.open_dataset(uri)
    columns = FeedColumns(ds.table, None)
    assert columns.missing_in(ds.table) is None
    assert columns.missing_in(ds.drop_columns(["x"]).table) == "x"
    with pytest.raises(
        InvalidInputError, match=r"version 3, column .x. no longer exists\. Restart"
    ):
        check_columns(columns, lance_stream.open_dataset(uri).table, "Restart the reader")
    check_columns(columns, ds.checkout(1).table, "")


def test_conditions_need_their_columns(uri: str) -> None:
    """They are evaluated on the feed's rows, so the feed must have the columns."""
    table = lance_stream.open_dataset(uri).table
    condition = parse_predicate("s.y = 'a' AND x > 1", SCHEMA)
    assert columns_of_query(table, ["x", CHANGE_COLUMNS.names[0]], None) == ["x"]
    assert columns_of_query(table, ["x"], condition) == ["x", "`s`.`y`"]


def test_maps_are_read_whole() -> None:
    """Where a version has none of a struct's columns, one is read to know which are null."""
    numbers = pa.map_(pa.string(), pa.int8())
    (stored,) = assign_ids(from_arrow(pa.schema([("s", pa.struct({"m": numbers}))]))).fields
    (target,) = assign_ids(from_arrow(pa.schema([("s", pa.struct({"a": pa.int8()}))]))).fields
    assert _required_part(target, stored, {target.id: stored.id}) == stored
    wide = pa.struct({"m": numbers, "t": pa.struct({"b": pa.int8(), "c": pa.int8()})})
    (stored,) = assign_ids(from_arrow(pa.schema([("s", wide)]))).fields
    part = _required_part(target, stored, {target.id: stored.id})
    assert [[leaf.name for leaf in child.walk()] for child in part.children] == [["t", "b"]]


def test_lists_are_no_maps() -> None:
    """An overwrite may put a list in the place of a map, whose entries are not its items."""
    (stored,) = assign_ids(from_arrow(pa.schema({"m": pa.map_(pa.string(), pa.int8())}))).fields
    items = pa.list_(pa.struct({"key": pa.string()}))
    (target,) = assign_ids(from_arrow(pa.schema({"m": items}))).fields
    ids = {target.id: stored.id}
    assert _required_part(target, stored, ids) == stored
    array = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8()))
    values = convert(array, _source(target, stored, ids, 0), items)
    assert values.to_pylist() == [None, None]


@pytest.mark.parametrize("num_entries", [0, 2])
def test_damaged_maps_name_the_damage(num_entries: int) -> None:
    """A manifest may be damaged, and then no reader guesses what its columns are."""
    (field,) = assign_ids(from_arrow(pa.schema({"m": pa.map_(pa.string(), pa.int8())}))).fields
    damaged = replace(field, children=field.children * num_entries)
    with pytest.raises(CorruptDataError, match=f"one field for its items, but {num_entries} are"):
        field_to_arrow(_nullable(damaged))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_lists_take_the_items_of_vectors(kind: pa.DataType) -> None:
    """The items of a vector are not a field, so there is no id to follow and none is needed."""
    vectors = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2))
    (expected,) = assign_ids(from_arrow(pa.schema([("v", kind)]))).fields
    (there,) = assign_ids(from_arrow(pa.schema([("v", vectors.type)]))).fields
    assert not there.children
    source = _source(expected, there, {expected.id: there.id}, 0)
    assert convert(vectors, source, kind).to_pylist() == vectors.to_pylist()
    # Their type in a version is that of the other kind, under the reader's name.
    for field, other in ((expected, there), (there, expected)):
        retyped = _retyped(replace(field, name="w"), {field.id: other.id}, {other.id: other})
        assert retyped == replace(other, name="w")
    items = [there, replace(expected, children=(replace(expected.children[0], id=9),))]
    for there in items[1:]:  # other items than the wanted ones are not theirs
        lists = vectors.cast(kind)
        source = _source(expected, there, {expected.id: there.id}, 0)
        assert convert(lists, source, kind).to_pylist() == [[None, None], None, [None, None]]


def test_restored_versions_may_be_removed() -> None:
    """The restore still has the columns of the version that it restored."""
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64()), ("x", pa.int64())])
    )
    ds = ds.rename_columns({"x": "y"}).rename_columns({"y": "z"}).restore(2)
    ds.cleanup(retain_versions=1)
    origin = Ancestry(lance_stream.open_dataset(ds.uri).table).origin(4)
    assert origin is not None
    assert origin.version == 2
    assert origin.same == {field.id: field.id for field in ds.table.schema.fields}


def test_structs_with_reordered_fields_are_rebuilt() -> None:
    """Another program may reorder and rename fields so that the type stays the same, and only
    the ids show that their values have changed places.
    """
    arrow = pa.struct([("a", pa.int8()), ("b", pa.int8())])
    (field,) = assign_ids(from_arrow(pa.schema([("s", arrow)]))).fields
    whole, a, b = (part.id for part in field.walk())
    array = pa.array([{"a": 1, "b": 2}], arrow)
    for ids, expected in (
        ({whole: whole, a: a, b: b}, {"a": 1, "b": 2}),
        ({whole: whole, a: b, b: a}, {"a": 2, "b": 1}),
        ({whole: whole, a: a}, {"a": 1, "b": None}),
        ({whole: whole, b: b}, {"a": None, "b": 2}),
    ):
        source = _source(field, field, ids, 0)
        assert convert(array, source, arrow).to_pylist() == [expected]


def test_all_columns_depend_on_the_version() -> None:
    """A list of names would leave out the columns that a later version adds."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    changes = CHANGE_COLUMNS.names
    assert split_change_columns(ds.table, None) == (None, changes)
    assert split_change_columns(ds.table, ["x"]) == (["x"], changes)
    assert split_change_columns(ds.table, ["x", changes[0]]) == (["x"], changes[:1])
    assert split_change_columns(ds.table, []) == ([], changes)
    with pytest.raises(InvalidInputError, match=f"'{changes[0]}' is selected twice"):
        split_change_columns(ds.table, [changes[0], changes[0]])
