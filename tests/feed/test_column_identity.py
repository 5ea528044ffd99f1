"""Columns are identified by field id, at every level of nesting, across versions.

Each test is a history whose feed must lead from one snapshot to the next.
"""

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.feed import columns_of_versions
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.snapshot.table_version import TableVersion

Row = dict[str, Any]


def uri_of(tmp_path: Path) -> str:
    return str(tmp_path / str(uuid.uuid4()))


def create_table(
    uri: str, *rows: Row, schema: pa.Schema | None = None, version: str = "2.1"
) -> Dataset:
    """Create a table of one version with these rows."""
    data = pa.Table.from_pylist(list(rows), schema)
    lance.write_dataset(data, uri, enable_stable_row_ids=True, data_storage_version=version)
    return lance_stream.open_dataset(uri)


def overwrite(uri: str, *rows: Row, schema: pa.Schema | None = None) -> None:
    lance.write_dataset(pa.Table.from_pylist(list(rows), schema), uri, mode="overwrite")


def images_of(uri: str, column: str, after: int = 0, **options: Any) -> list[tuple[int, str, Any]]:
    """Each change as the version, the kind and one column."""
    read = lance_stream.open_dataset(uri).changes(after, **options).read_all()
    names = ["_commit_version", "_change_type", column]
    return list(zip(*(read[name].to_pylist() for name in names), strict=True))


def struct(**kinds: pa.DataType) -> pa.DataType:
    return pa.struct(list(kinds.items()))


# --- parts of a struct


def test_reordered_struct_fields_keep_their_values(tmp_path: Path) -> None:
    """Fields are matched by name after an overwrite, and their order must not swap values."""
    uri = uri_of(tmp_path)
    create_table(uri, {"s": {"y": 1, "z": 2}})
    overwrite(uri, {"s": {"z": 20, "y": 10}})
    assert images_of(uri, "s") == [
        (1, "insert", {"z": 2, "y": 1}),
        (2, "delete", {"z": 2, "y": 1}),
        (2, "insert", {"z": 20, "y": 10}),
    ]


def test_reused_field_ids_are_other_columns(tmp_path: Path) -> None:
    """The id of a dropped struct field is given to a top-level column."""
    uri = uri_of(tmp_path)
    ds = create_table(uri, {"id": 1, "s": {"y": 1, "z": "old"}}).append(
        pa.Table.from_pylist([{"id": 2, "s": {"y": 2, "z": "old"}}])
    )
    dropped = ds.table.schema.fields[1].children[1].id
    ds = ds.drop_columns(["s.z"]).compact()
    lance.dataset(uri).add_columns(pa.field("n", pa.string()))
    ds = lance_stream.open_dataset(uri)
    assert ds.table.schema.fields[-1].id == dropped
    assert images_of(uri, "n") == [(1, "insert", None), (2, "insert", None)]
    assert images_of(uri, "s") == [(1, "insert", {"y": 1}), (2, "insert", {"y": 2})]


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_reused_ids_within_structs_are_noticed(tmp_path: Path, version: str) -> None:
    """Another field of the same struct gets the id of the dropped one."""
    uri = uri_of(tmp_path)
    rows = [{"s": {"y": 1, "z": "old"}}, {"s": {"y": 2, "z": "old"}}]
    ds = create_table(uri, rows[0], version=version).append(pa.Table.from_pylist(rows[1:]))
    ds = ds.drop_columns(["s.z"]).compact()
    expected: dict[str, Any] = {"y": 1}
    if version == "2.2":  # the others take no new parts
        part = pa.field("w", pa.string())
        lance.dataset(uri).add_columns(pa.field("s", pa.struct([part])))
        expected["w"] = None
    lance.dataset(uri).alter_columns({"path": "s.y", "data_type": pa.int32()})
    parts = lance_stream.open_dataset(uri).table.schema.fields[0].children
    assert 2 in {part.id for part in parts}, "the id that z had"
    output = [row[2] for row in images_of(uri, "s")]
    assert output == [expected, {**expected, "y": 2}] * 3


def test_a_recreated_struct_field_starts_null(tmp_path: Path) -> None:
    """The field must not show values of the dropped field of that name."""
    uri = uri_of(tmp_path)
    create_table(uri, {"id": 1, "s": {"y": 1, "z": "old"}})
    overwrite(uri, {"id": 1, "s": {"y": 2}})
    overwrite(uri, {"id": 1, "s": {"y": 3, "z": "new"}})
    assert [row[2] for row in images_of(uri, "s")] == [
        {"y": 1, "z": None},
        {"y": 1, "z": None},
        {"y": 2, "z": None},
        {"y": 2, "z": None},
        {"y": 3, "z": "new"},
    ]


def test_cast_struct_fields_keep_their_values(tmp_path: Path) -> None:
    """A cast gives the field a new id, but it is still the same field."""
    uri = uri_of(tmp_path)
    create_table(
        uri, {"s": {"y": 1, "z": "a"}}, schema=pa.schema({"s": struct(y=pa.int32(), z=pa.string())})
    )
    lance.dataset(uri).alter_columns({"path": "s.y", "data_type": pa.int64()})
    same = {"y": 1, "z": "a"}
    assert images_of(uri, "s") == [
        (1, "insert", same),
        (2, "update_preimage", same),
        (2, "update_postimage", same),
    ]


def test_renamed_struct_fields_keep_their_values(tmp_path: Path) -> None:
    """Swapped names must be followed by field id, in structs as in columns."""
    uri = uri_of(tmp_path)
    create_table(uri, {"s": {"y": 1, "z": 2}}).rename_columns({"s.y": "z", "s.z": "y"})
    assert images_of(uri, "s") == [(1, "insert", {"z": 1, "y": 2})]


def test_structs_without_matching_fields_remain(tmp_path: Path) -> None:
    """If none of its fields existed yet, a struct is still null or not null."""
    uri = uri_of(tmp_path)
    create_table(uri, {"id": 1, "s": {"y": 1}}, {"id": 2, "s": None})
    ds = lance_stream.open_dataset(uri)
    overwrite(uri, {"id": 3, "s": {"z": 5}})
    assert [row[2] for row in images_of(uri, "s")][:2] == [{"z": None}, None]
    assert ds.version == 1


def test_required_struct_fields_may_start_null(tmp_path: Path) -> None:
    """A field that did not exist yet has no value in older rows, whatever the newest schema
    demands.
    """
    uri = uri_of(tmp_path)
    create_table(uri, {"s": {"y": 1}})
    part = pa.field("z", pa.int64(), nullable=False)
    schema = pa.schema([("s", pa.struct([pa.field("y", pa.int64()), part]))])
    overwrite(uri, {"s": {"y": 1, "z": 2}}, schema=schema)
    assert [row[2] for row in images_of(uri, "s")] == [
        {"y": 1, "z": None},
        {"y": 1, "z": None},
        {"y": 1, "z": 2},
    ]


# --- other types

INT32S = pa.list_(pa.int32())
CASTS = [
    pytest.param(INT32S, [1, 2], pa.list_(pa.float64()), [1.0, 2.0], id="items to floats"),
    pytest.param(INT32S, [1], pa.list_(pa.int64()), [1], id="items wider"),
    pytest.param(INT32S, [1], pa.large_list(pa.int32()), [1], id="a large list"),
    pytest.param(INT32S, [1], pa.list_(pa.int32(), 1), [1], id="a list of a fixed size"),
    pytest.param(INT32S, [1, 2], pa.list_(pa.int32(), 1), None, id="a list of another size"),
    pytest.param(pa.list_(pa.int32(), 2), [1, 2], INT32S, [1, 2], id="no fixed size any more"),
    pytest.param(
        pa.list_(struct(p=pa.int8(), q=pa.int8())), [{"p": 1, "q": 2}],
        pa.list_(struct(q=pa.int64(), p=pa.int8())), [{"q": 2, "p": 1}], id="items in order",
    ),
    pytest.param(pa.int32(), 1, pa.string(), None, id="a number as a text"),
    pytest.param(pa.string(), "1", pa.large_string(), "1", id="a large text"),
    pytest.param(pa.int64(), 7, pa.int8(), 7, id="narrower, and it fits"),
    pytest.param(pa.int64(), 700, pa.int8(), None, id="narrower, and it does not fit"),
    pytest.param(pa.float64(), 0.5, pa.float32(), 0.5, id="a float that is one of 32 bits"),
    pytest.param(pa.float64(), 0.1, pa.float32(), None, id="a float that is none of 32 bits"),
    pytest.param(pa.decimal128(20, 2), 5, pa.decimal128(25, 2), 5, id="more digits"),
    pytest.param(struct(y=pa.int32()), {"y": 1}, pa.int32(), None, id="a struct as a number"),
    pytest.param(pa.int32(), 1, struct(y=pa.int32()), None, id="a number as a struct"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "value", "now", "expected"), CASTS)
def test_retyped_columns_show_equal_values(
    tmp_path: Path, before: pa.DataType, value: Any, now: pa.DataType, expected: Any
) -> None:
    """Values that the new type cannot hold are null."""
    uri = uri_of(tmp_path)
    create_table(uri, {"id": 1, "x": value}, schema=pa.schema({"id": pa.int64(), "x": before}))
    overwrite(uri, {"id": 2, "x": None}, schema=pa.schema({"id": pa.int64(), "x": now}))
    assert images_of(uri, "x") == [
        (1, "insert", expected),
        (2, "delete", expected),
        (2, "insert", None),
    ]


def test_maps_show_entries_under_other_types(tmp_path: Path) -> None:
    """Keys and values of maps follow the same rules as columns, null and empty maps included."""
    uri = uri_of(tmp_path)
    schema = pa.schema({"m": pa.map_(pa.string(), struct(p=pa.int32(), q=pa.int32()))})
    row = {"m": [("k", {"p": 1, "q": 2})]}
    create_table(uri, row, {"m": None}, {"m": []}, schema=schema, version="2.2")
    schema = pa.schema({"m": pa.map_(pa.string(), struct(q=pa.int64(), p=pa.int32()))})
    overwrite(uri, row, schema=schema)
    assert [row[2] for row in images_of(uri, "m")][:3] == [[("k", {"q": 2, "p": 1})], None, []]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1, None]),
        (pa.large_list(pa.list_(pa.int64())), [[1], None, []]),
        (pa.map_(pa.string(), pa.list_(pa.int64())), [("k", [1])]),
    ],
)
@pytest.mark.parametrize("between", [pa.int64(), pa.list_(pa.float32(), 4)])
def test_items_belong_to_lists_forever(
    tmp_path: Path, kind: pa.DataType, value: Any, between: pa.DataType
) -> None:
    """A version in which the column has no items does not hide the older ones."""
    uri = uri_of(tmp_path)
    rows = [{"x": value}, {"x": None}]
    create_table(uri, *rows, schema=pa.schema({"x": kind}), version="2.2")
    overwrite(uri, schema=pa.schema({"x": between}))
    overwrite(uri, schema=pa.schema({"x": kind}))
    assert [row[2] for row in images_of(uri, "x")] == [value, None, value, None]


@pytest.mark.parametrize("is_packed", [True, False])
def test_structs_may_become_packed_or_unpacked(tmp_path: Path, is_packed: bool) -> None:
    """Packing only affects storage and must not create another column."""
    uri = uri_of(tmp_path)
    plain = pa.field("s", struct(y=pa.int32(), z=pa.int32()))
    packed = plain.with_metadata({"packed": "true"})
    fields = (packed, plain) if is_packed else (plain, packed)
    create_table(uri, {"s": {"y": 1, "z": 2}}, schema=pa.schema([fields[0]]))
    overwrite(uri, {"s": {"y": 3, "z": 4}}, schema=pa.schema([fields[1]]))
    assert [row[2] for row in images_of(uri, "s")] == [
        {"y": 1, "z": 2},
        {"y": 1, "z": 2},
        {"y": 3, "z": 4},
    ]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_dropped_parts_of_packed_structs_vanish(
    tmp_path: Path, is_packed: bool, version: str
) -> None:
    """A file stores a packed struct as one column, which is read as a whole."""
    uri = uri_of(tmp_path)
    metadata = {"packed": "true"} if is_packed else None
    kind = struct(x=pa.int64(), y=pa.int64())
    schema = pa.schema([pa.field("s", kind, metadata=metadata)])
    create_table(uri, {"s": {"x": 1, "y": 2}}, schema=schema, version=version)
    overwrite(uri, {"s": {"y": 3}})
    assert images_of(uri, "s") == [
        (1, "insert", {"y": 2}),
        (2, "delete", {"y": 2}),
        (2, "insert", {"y": 3}),
    ]


def test_bytes_that_become_blobs_keep_values(tmp_path: Path) -> None:
    """Blobs are read by other means than plain bytes, while the values are the same."""
    uri = uri_of(tmp_path)
    plain = pa.field("b", pa.large_binary())
    create_table(uri, {"b": b"plain"}, schema=pa.schema([plain]))
    blobs = plain.with_metadata({"lance-encoding:blob": "true"})
    overwrite(uri, {"b": b"a blob"}, schema=pa.schema([blobs]))
    assert images_of(uri, "b") == [
        (1, "insert", b"plain"),
        (2, "delete", b"plain"),
        (2, "insert", b"a blob"),
    ]


def test_truncated_casts_show_null_before(tmp_path: Path) -> None:
    """A value that the new type cannot represent must not become another value."""
    uri = uri_of(tmp_path)
    schema = pa.schema({"t": pa.timestamp("us")})
    rows = pa.table([pa.array([1_000, 1_234], pa.timestamp("us"))], schema=schema)
    create_table(uri, *rows.to_pylist(), schema=schema)
    lance.dataset(uri).alter_columns({"path": "t", "data_type": pa.timestamp("ms")})
    one = pa.scalar(1, pa.timestamp("ms")).as_py()
    assert images_of(uri, "t") == [
        (1, "insert", one),
        (1, "insert", None),
        (2, "update_preimage", one),
        (2, "update_preimage", None),
        (2, "update_postimage", one),
        (2, "update_postimage", one),
    ]


def test_renamed_and_cast_columns_keep_identity(tmp_path: Path) -> None:
    """One call may change both name and type, and then the id is new as well."""
    uri = uri_of(tmp_path)
    create_table(uri, {"id": 1, "x": 10})
    lance.dataset(uri).alter_columns({"path": "x", "name": "price", "data_type": pa.int32()})
    assert [row[2] for row in images_of(uri, "price")] == [10, 10, 10]


# --- names


def test_renamed_columns_keep_their_values(tmp_path: Path) -> None:
    """Swapped names must be followed by field id."""
    uri = uri_of(tmp_path)
    ds = create_table(uri, {"a": 1, "b": 2}).rename_columns({"a": "b", "b": "a"})
    ds.append(pa.table({"b": [10], "a": [20]}))
    assert images_of(uri, "a") == [(1, "insert", 2), (3, "insert", 20)]
    assert images_of(uri, "b") == [(1, "insert", 1), (3, "insert", 10)]


def test_names_identify_columns_across_a_gap(tmp_path: Path) -> None:
    """If a version between is gone ids cannot be followed, and names are the best evidence."""
    uri = uri_of(tmp_path)
    ds = create_table(uri, {"x": 1}).append(pa.table({"x": [2]})).append(pa.table({"x": [3]}))
    ds = ds.rename_columns({"x": "price"})
    ds.table.store.delete(ds.table.log.manifest_path(2))
    net = images_of(uri, "price", after=1, deduplication_mode="netChanges")
    assert [row[2] for row in net] == [2, 3]


# --- how much of the history is read


def manifests_read(monkeypatch: pytest.MonkeyPatch, ds: Dataset, version: int) -> int:
    """Return how many versions are read to follow all columns back to one."""
    columns = FeedColumns(ds.table, None)
    table = ds.checkout(version).table
    read: list[int] = []
    real = TableVersion.read_at

    def read_at(self: TableVersion, number: int) -> TableVersion:
        read.append(number)
        return real(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(TableVersion, "read_at", read_at)
        ids = columns.ids_in(table)
    with monkeypatch.context() as patched:
        patched.setattr(columns_of_versions, "SHORTEST_LEAP", 1 << 30)
        assert FeedColumns(ds.table, None).ids_in(table) == ids
    return len(read)


@pytest.mark.parametrize(("every", "maximum"), [(0, 24), (60, 90)])
def test_few_manifests_identify_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, maximum: int
) -> None:
    """Few manifests must suffice even if a compaction replaced all files of the previous
    version.
    """
    schema = pa.schema([("id", pa.int64()), ("s", struct(a=pa.int64(), b=pa.string()))])
    ds = lance_stream.create_dataset(tmp_path / "t", schema)
    for number in range(200):
        ds = ds.append(pa.table({"id": [number], ds.schema.names[1]: [{"a": number, "b": "x"}]}))
        if every and number % every == every - 1:
            ds = ds.compact()
        if number == 100:
            ds = ds.rename_columns({"s": "t"}).add_columns(pa.field("s", pa.int64()))
            ds = ds.drop_columns(["s"])
    assert manifests_read(monkeypatch, ds, 3) <= maximum


@pytest.mark.parametrize("part", ["x", "s.x"])
def test_reused_field_ids_are_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Versions far apart have the same schema, but share no file with values of the column."""
    fields = {"x": pa.int64()} if part == "x" else {"s": struct(a=pa.int64(), x=pa.int64())}
    rows = {"x": 1} if part == "x" else {"s": {"a": 1, "x": 1}}
    schema = pa.schema({"id": pa.int64(), **fields})
    ds = lance_stream.create_dataset(tmp_path / "t", schema)
    for _ in range(20):
        ds = ds.append(pa.Table.from_pylist([{"id": 1, **rows}], schema))
    top = part.partition(".")[0]
    old = ds.schema.field(top)
    ds = ds.drop_columns([top]).compact().add_columns(old)
    for _ in range(20):
        ds = ds.append(pa.Table.from_pylist([{"id": 1, **rows}], schema))
    ids = {field.name: field.id for field in ds.table.schema.walk()}
    before = {field.name: field.id for field in ds.checkout(5).table.schema.walk()}
    assert ids == before
    manifests_read(monkeypatch, ds, 5)
    assert FeedColumns(ds.table, None).ids_in(ds.checkout(5).table) == {ids["id"]: ids["id"]}


def test_fields_with_swapped_names_keep_values() -> None:
    """The type of the struct is the same before and after, so only the ids tell them apart."""
    schema = pa.schema([("s", pa.struct([("a", pa.int8()), ("b", pa.int8())]))])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    ds = ds.append(pa.table({"s": [{"a": 1, "b": 2}]}, schema=schema))
    ds = ds.rename_columns({"s.a": "b", "s.b": "a"})
    assert ds.to_table()["s"].to_pylist() == [{"b": 1, "a": 2}]
    assert ds.changes(0).read_all()["s"].to_pylist() == [{"b": 1, "a": 2}]
