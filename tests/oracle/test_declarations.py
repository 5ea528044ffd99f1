"""What rows declare about their columns, beside names and types, in every way to make a table."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError

pytestmark = pytest.mark.oracle

KEY = "lance-schema:unenforced-primary-key"
BLOB = {"lance-encoding:blob": "true"}
UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=7).bytes], pa.binary(16)))


def table_of(field: pa.Field, value: Any, metadata: dict[str, str] | None = None) -> pa.Table:
    """Return one row of two columns."""
    schema = pa.schema([("id", pa.int64()), field], metadata)
    column = value if isinstance(value, pa.Array) else pa.array([value], field.type)
    return pa.Table.from_arrays([pa.array([1]), column], schema=schema)


DECLARATIONS = {
    "schema metadata": table_of(pa.field("x", pa.int32()), 1, {"owner": "us"}),
    "field metadata": table_of(pa.field("x", pa.int32(), metadata={"unit": "m"}), 1),
    "encoding": table_of(
        pa.field("x", pa.string(), metadata={"lance-encoding:compression": "zstd"}), "a"
    ),
    "extension type": table_of(pa.field("x", pa.uuid()), UUIDS),
    "blob": table_of(pa.field("x", pa.large_binary(), metadata=BLOB), b"bytes"),
    "no nulls": table_of(pa.field("x", pa.int32(), nullable=False), 1),
    "primary key": table_of(pa.field("x", pa.int32(), nullable=False, metadata={KEY: "true"}), 1),
    "part of a struct": table_of(
        pa.field("x", pa.struct([pa.field("y", pa.int32(), False, {"unit": "m"})])), {"y": 1}
    ),
    "extension in a list": table_of(
        pa.field("x", pa.list_(pa.field("item", pa.uuid(), metadata={"unit": "m"}))),
        pa.ListArray.from_arrays([0, 1], UUIDS),
    ),
}


def bare(schema: pa.Schema) -> pa.Schema:
    """Return the same columns, with names and storage types only."""

    def bare_field(field: pa.Field) -> pa.Field:
        return pa.field(field.name, bare_type(field.type))

    def bare_type(kind: pa.DataType) -> pa.DataType:
        if isinstance(kind, pa.BaseExtensionType):
            return bare_type(kind.storage_type)
        if pa.types.is_struct(kind):
            return pa.struct([bare_field(part) for part in kind])
        if pa.types.is_list(kind):
            return pa.list_(bare_field(kind.value_field))
        return kind

    return pa.schema([bare_field(field) for field in schema])


MAKERS: dict[str, Callable[[str, pa.Table], Dataset]] = {
    "created with rows": lance_stream.create_dataset,
    "created empty": lambda uri, rows: lance_stream.create_dataset(uri, rows.schema).append(rows),
    "overwritten": lambda uri, rows: lance_stream.create_dataset(uri, bare(rows.schema)).overwrite(
        rows
    ),
    "overwritten with itself": lambda uri, rows: lance_stream.create_dataset(uri, rows).overwrite(
        rows
    ),
    "overwritten with other columns": lambda uri, rows: lance_stream.create_dataset(
        uri, pa.schema([("z", pa.int8())])
    ).overwrite(rows),
}


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("declaration", DECLARATIONS)
@pytest.mark.parametrize("file_version", ["2.1", "2.2"])
def test_declarations_are_stored_as_pylance_does(
    tmp_path: Path, declaration: str, how: str, file_version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers get their units, keys and types back, whichever way the rows came in."""
    monkeypatch.setattr("lance_stream.verbs.create.DEFAULT_FILE_VERSION", version_of(file_version))
    rows = DECLARATIONS[declaration]
    theirs = lance.write_dataset(rows, tmp_path / "theirs", data_storage_version=file_version)
    ds = MAKERS[how](str(tmp_path / "ours"), rows)
    ours = lance.dataset(tmp_path / "ours")
    assert ours.data_storage_version == theirs.data_storage_version
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ds.to_table().equals(rows)
    assert ds.verify(deep=True) == []


def version_of(name: str) -> Any:
    from lance_stream.file.versions import FileVersion

    return FileVersion.parse(name)


@pytest.mark.parametrize("declaration", [name for name in DECLARATIONS if name != "blob"])
def test_added_columns_keep_their_declarations(tmp_path: Path, declaration: str) -> None:
    """As when a table is created, except for what existing rows without values cannot fulfil."""
    field = DECLARATIONS[declaration].schema.field("x")
    if not field.nullable:
        field = field.with_nullable(True).with_metadata({"unit": "m"})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), pa.table({"id": [1]})).add_columns(field)
    assert ds.schema.field("x").equals(field, check_metadata=True)


def test_added_columns_bring_schema_metadata(tmp_path: Path) -> None:
    """A schema says more than its fields, as it does for pylance."""
    rows = table_of(pa.field("x", pa.int32()), 1, {"a": "1", "b": "2"})
    added = pa.schema([pa.field("y", pa.int32())], {"b": "3", "c": "4"})
    lance.write_dataset(rows, tmp_path / "theirs").add_columns(added)
    ds = lance_stream.create_dataset(str(tmp_path / "ours"), rows).add_columns(added)
    expected = {b"a": b"1", b"b": b"2", b"c": b"4"}
    assert lance.dataset(tmp_path / "theirs").schema.metadata == expected
    assert ds.schema.metadata == lance.dataset(tmp_path / "ours").schema.metadata == expected


def test_undeclared_properties_outlive_an_overwrite(tmp_path: Path) -> None:
    """Rows without a key or metadata would otherwise drop those of the table, as in pylance."""
    for name, rows in DECLARATIONS.items():
        ds = lance_stream.create_dataset(str(tmp_path / name), rows)
        plain = rows.cast(bare(rows.schema)) if name != "extension in a list" else rows
        before = ds.table.schema
        assert ds.overwrite(plain).table.schema == before
        assert lance.dataset(tmp_path / name).count_rows() == 1


UNFIT_KEYS = {
    "nullable": (pa.field("x", pa.int32(), metadata={KEY: "true"}), 1),
    "in a nullable struct": (
        pa.field("x", pa.struct([pa.field("y", pa.int32(), False, {KEY: "true"})])),
        {"y": 1},
    ),
    "list": (pa.field("x", pa.list_(pa.int32()), False, {KEY: "true"}), [1]),
    "in a list": (
        pa.field("x", pa.list_(pa.field("item", pa.int32(), False, {KEY: "true"})), False),
        [1],
    ),
    "blob": (pa.field("x", pa.large_binary(), False, {KEY: "true", **BLOB}), b"x"),
}


@pytest.mark.parametrize("unfit", UNFIT_KEYS)
def test_keys_unreadable_by_pylance_are_refused(tmp_path: Path, unfit: str) -> None:
    """pylance can read no version of a table with such a key."""
    rows = table_of(*UNFIT_KEYS[unfit])
    with pytest.raises((OSError, ValueError), match=r"[Pp]rimary key"):
        lance.write_dataset(rows, tmp_path / "theirs", data_storage_version="2.2")
    with pytest.raises(InvalidInputError, match=r"'x[a-z.]*' cannot be part of the primary key"):
        lance_stream.create_dataset(str(tmp_path / "ours"), rows)
    with pytest.raises(InvalidInputError, match="cannot be part of the primary key"):
        lance_stream.create_dataset(str(tmp_path / "other"), pa.table({"id": [1]})).overwrite(rows)


def test_structs_around_keys_stay_required(tmp_path: Path) -> None:
    """pylance reads no table whose key is in a struct that may be null."""
    part = pa.field("y", pa.int32(), False, {KEY: "true"})
    rows = table_of(pa.field("x", pa.struct([part]), False), {"y": 1})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), rows)
    assert lance.dataset(tmp_path / "t").to_table().equals(rows)
    with pytest.raises(InvalidInputError, match="a part of it, is in the table's primary key"):
        ds.alter_columns({"path": "x", "nullable": True})


def test_extension_items_of_vectors_are_refused(tmp_path: Path) -> None:
    """The format has no place for their type, except for bfloat16; we dropped it silently."""
    lists = pa.FixedSizeListArray.from_arrays(UUIDS, 1)
    rows = pa.table({"id": [1], "x": lists})
    with pytest.raises(OSError, match="does not match the file schema"):
        lance.write_dataset(rows, tmp_path / "theirs")
    with pytest.raises(InvalidInputError, match=r"fixed-size list.*arrow\.uuid.*storage"):
        lance_stream.create_dataset(str(tmp_path / "ours"), rows)
    plain = pa.table({"id": [1], "x": pa.FixedSizeListArray.from_arrays(UUIDS.storage, 1)})
    ds = lance_stream.create_dataset(str(tmp_path / "ours"), plain)
    expected = plain.column("x").to_pylist()
    assert ds.append(rows).to_table().column("x").to_pylist() == expected * 2


def test_metadata_keys_must_be_text(tmp_path: Path) -> None:
    """The format stores text; Arrow has bytes."""
    rows = pa.table({"id": [1]}).replace_schema_metadata({b"\xff": b"x"})
    with pytest.raises(InvalidInputError, match="a metadata key is not UTF-8"):
        lance_stream.create_dataset(str(tmp_path / "t"), rows)


def test_changed_declarations_keep_field_ids(tmp_path: Path) -> None:
    """A reader of the change feed follows the columns, and other entries stay."""
    metadata = {"unit": "m", "ARROW:extension:name": "ours", "ARROW:extension:metadata": "1"}
    field = pa.field("x", pa.int32(), metadata=metadata)
    ds = lance_stream.create_dataset(str(tmp_path / "t"), table_of(field, 1, {"a": "1", "b": "2"}))
    ids = [field.id for field in ds.table.schema.walk()]
    changed = pa.field("x", pa.int32(), metadata={"ARROW:extension:name": "other", "note": "n"})
    after = ds.overwrite(table_of(changed, 2, {"b": "3"}))
    assert [field.id for field in after.table.schema.walk()] == ids
    assert after.schema.metadata == {b"a": b"1", b"b": b"3"}
    assert after.schema.field("x").metadata == {
        b"unit": b"m",
        b"ARROW:extension:name": b"other",
        b"note": b"n",
    }
    changes = after.changes(0).read_all()
    assert changes.column("x").to_pylist() == [1, 1, 2]
    assert changes.column("_change_type").to_pylist() == ["insert", "delete", "insert"]


def test_new_primary_keys_replace_old_ones(tmp_path: Path) -> None:
    """Two keys at once would be one key of two columns."""
    rows = DECLARATIONS["primary key"]
    old = rows.schema.set(0, pa.field("id", pa.int64(), False, {KEY: "true"}))
    old = old.set(1, pa.field("x", pa.int32()))
    ds = lance_stream.create_dataset(str(tmp_path / "t"), old).overwrite(rows)
    keys = [f.name for f in ds.table.schema.fields if f.primary_key_position is not None]
    assert keys == ["x"]


def test_overwrites_can_make_blob_columns(tmp_path: Path) -> None:
    """The mark decides how bytes are stored, so the versions before keep theirs."""
    rows = DECLARATIONS["blob"]
    ds = lance_stream.create_dataset(str(tmp_path / "t"), bare(rows.schema))
    first = ds.append(rows.cast(bare(rows.schema)))
    after = first.overwrite(rows).append(rows)
    (blob, _) = after.take_blobs("x", [0, 1])
    assert blob is not None
    assert blob.read() == b"bytes"
    assert first.to_table().column("x").to_pylist() == [b"bytes"]
    assert after.restore(first.version).verify(deep=True) == []
    assert after.changes(0).read_all().column("x").to_pylist() == [b"bytes"] * 4
