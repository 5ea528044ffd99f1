"""Which indices of a version filters use, and what their files must be like."""

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_stream
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.expressions.predicates import parse_expression
from lance_stream.file.versions import FileVersion
from lance_stream.read.indices import bitmap
from lance_stream.read.indices.bitmap import open_bitmap
from lance_stream.read.indices.column_conditions import ColumnCondition
from lance_stream.read.indices.evaluation import is_true_for_null, where_true
from lance_stream.read.indices.index_file import IndexFile
from lance_stream.read.indices.segments import Segment, plan_index, segments_by_column
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.index_coverage import FRAGMENT_REUSE
from lance_stream.table.indices import IndexMetadata, encode_index_section

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct({"x": pa.string()})),
        ("t", pa.time32("s")),
        ("l", pa.list_(pa.int64())),
        ("u", pa.uuid()),
        ("v", pa.list_(pa.float32(), 2)),
    ]
)
"""Its fields have the ids 0; 1 and 2; 3; 4 and 5; 6; 7."""

BTREE = IndexMetadata(
    b"0" * 16,
    (0,),
    "an index",
    1,
    BitMap([0]).serialize(),
    ("/lance.index.pb.BTreeIndexDetails", b""),
    index_version=1,
)
BITMAP = replace(
    BTREE, details=("/lance.index.pb.BitmapIndexDetails", b""), index_version=0, uuid=b"1" * 16
)


@pytest.fixture(scope="module")
def table() -> TableVersion:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA).table


def with_indices(table: TableVersion, *indices: IndexMetadata) -> TableVersion:
    return table.at(replace(table.manifest, index_section=encode_index_section(list(indices))))


def used(table: TableVersion, *indices: IndexMetadata) -> dict[str, list[list[str]]]:
    """Return the kinds of the segments that can be used, by column and index."""
    return {
        ".".join(path): [[segment.kind for segment in segments] for segments in several]
        for path, several in segments_by_column(with_indices(table, *indices)).items()
    }


@pytest.mark.parametrize(
    ("index", "column"),
    [
        (BTREE, "id"),
        (replace(BTREE, field_ids=(2,)), "s.x"),
        (replace(BTREE, index_version=0), "id"),
        (replace(BTREE, index_version=None), "id"),
        (replace(BTREE, index_version=2), None),
        (replace(BTREE, field_ids=()), None),
        (replace(BTREE, field_ids=(99,)), None),
        (replace(BTREE, field_ids=(0, 2)), None),
        (replace(BTREE, field_ids=(1,)), None),
        (replace(BTREE, field_ids=(3,)), None),
        (replace(BTREE, field_ids=(5,)), None),
        (replace(BTREE, field_ids=(6,)), None),
        (replace(BTREE, field_ids=(7,)), None),
        (replace(BTREE, fragment_bitmap=b""), None),
        (replace(BTREE, details=None), None),
        (replace(BTREE, details=("/lance.index.pb.ZoneMapIndexDetails", b"")), None),
        (BITMAP, "id"),
        (replace(BITMAP, index_version=None), "id"),
        (replace(BITMAP, index_version=1), None),
    ],
)
def test_understood_indices_are_used(
    table: TableVersion, index: IndexMetadata, column: str | None
) -> None:
    """An index of a later format, or of values in another order, would lose rows."""
    kind = "BITMAP" if index.uuid == BITMAP.uuid else "BTREE"
    assert used(table, index) == ({} if column is None else {column: [[kind]]})


def test_segments_belong_together(table: TableVersion) -> None:
    """An index is all of its segments: without one of them, it lacks rows."""
    other = replace(BTREE, uuid=b"2" * 16)
    assert used(table, BTREE, other) == {"id": [["BTREE", "BTREE"]]}
    assert used(table, BITMAP, replace(BTREE, name="other")) == {"id": [["BTREE"], ["BITMAP"]]}
    assert used(table) == {}
    for wrong in (
        BITMAP,
        BTREE,
        replace(other, field_ids=(2,)),
        replace(other, fragment_bitmap=b""),
        replace(other, index_version=2),
        replace(BTREE, name="other"),
        replace(other, name=FRAGMENT_REUSE),
    ):
        assert used(table, BTREE, wrong) == {}, wrong


@pytest.mark.parametrize(
    ("path", "text", "is_planned"),
    [
        (("id",), "id IS NULL", True),
        (("id",), "id = 1", True),
        (("s", "x"), "s.x = 'a'", True),
        (("s", "x"), "s.x IS NULL", False),
        (("s", "x"), "s.x IS NULL OR s.x = 'a'", False),
    ],
)
def test_nulls_in_structs_need_scans(
    table: TableVersion, path: tuple[str, ...], text: str, is_planned: bool
) -> None:
    """It is unknown what an index contains for rows whose struct is null."""
    field = table.schema.fields[0] if path == ("id",) else table.schema.fields[1].children[0]
    segment = Segment(replace(BTREE, fragment_bitmap=BitMap([77]).serialize()), "BTREE", field)
    condition = ColumnCondition(path, (parse_expression(text).node,))
    assert plan_index(table, [segment], condition) == ([] if is_planned else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", [True, False, False]),
        ("a = NULL", [False, False, False]),
        ("a IS NULL", [False, False, True]),
        ("TRUE", [True, True, True]),
        ("FALSE", [False, False, False]),
        ("NULL", [False, False, False]),
    ],
)
def test_constants_are_true_everywhere(text: str, expected: list[bool]) -> None:
    """A condition on an index may have a part that is the same for all values."""
    condition = ColumnCondition(("a",), (parse_expression(text).node,))
    assert where_true(condition, pa.array([1, 2, None])).tolist() == expected
    assert is_true_for_null(condition, pa.int64()) == expected[2]


@pytest.mark.parametrize("num_keys", [0, 2, 3, 4])
def test_many_keys_are_not_read(monkeypatch: pytest.MonkeyPatch, num_keys: int) -> None:
    """Their memory is not bounded by the size of the file."""
    monkeypatch.setattr(bitmap, "MAX_KEYS", 3)
    keys = pa.array(range(num_keys))
    file = SimpleNamespace(num_rows=num_keys, whole=lambda *_: [keys])
    part: Any = SimpleNamespace(open=lambda *_: file, ranges_of=lambda _: None)
    if num_keys <= 3:
        assert open_bitmap(part).num_keys == num_keys
        return
    with pytest.raises(UnsupportedFeatureError, match="has 4 keys, more than 3"):
        open_bitmap(part)


def reader_of(schema: pa.Schema, **changed: Any) -> Any:
    """Return a reader whose file has some columns."""
    plain = assign_ids(from_arrow(schema))
    fields = tuple(replace(field, **changed) for field in plain.fields)
    metadata = SimpleNamespace(version=FileVersion.V2_2, schema=SimpleNamespace(fields=fields))
    return SimpleNamespace(metadata=metadata)


COLUMNS = pa.schema({"values": pa.int64(), "ids": pa.uint64()})


def test_columns_of_indices_are_checked() -> None:
    """The values of another column would be taken for row ids."""
    names = {"values": None, "ids": "uint64"}
    assert list(IndexFile(reader_of(COLUMNS), names).fields) == ["values", "ids"]
    old = reader_of(COLUMNS)
    old.metadata.version = FileVersion.V0_1
    with pytest.raises(UnsupportedFeatureError, match=r"file version 0\.1"):
        IndexFile(old, names)
    for wrong, why in (
        (reader_of(COLUMNS, id=7), "two columns of an index have the same id"),
        (reader_of(COLUMNS.append(pa.field("x", pa.int8()))), "of an index has columns"),
        (
            reader_of(pa.schema({"values": pa.int64(), "ids": pa.int64()})),
            "column 'ids' of an index has type int64 instead of uint64",
        ),
        (
            reader_of(pa.schema({"values": pa.struct({"x": pa.int8()}), "ids": pa.uint64()})),
            "column 'values' of an index has type struct",
        ),
    ):
        with pytest.raises(CorruptDataError, match=why):
            IndexFile(wrong, names)


def test_widest_index_columns_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts what is in memory; no rows are a group without columns."""
    file = IndexFile(reader_of(pa.schema({"keys": pa.string()})), {"keys": None})
    texts = pa.array(["abc", "de"])
    groups = [[texts], [texts]]
    monkeypatch.setattr(IndexFile, "num_rows", 4)
    monkeypatch.setattr(IndexFile, "groups", lambda *_: iter(groups))
    monkeypatch.setattr(IndexFile, "read", lambda *_: [texts.slice(0, 0)])
    size = 2 * int(texts.nbytes)
    for max_bytes in (size, size + 1):
        assert file.whole(np.array, max_bytes, "keys")[0].to_pylist() == ["abc", "de"] * 2  # type: ignore[arg-type]  # reads nothing
    with pytest.raises(UnsupportedFeatureError, match=f"take more than {size - 1} bytes"):
        file.whole(np.array, size - 1, "keys")  # type: ignore[arg-type]  # reads nothing
    groups.clear()
    assert file.whole(np.array, 0, "keys")[0].to_pylist() == []  # type: ignore[arg-type]  # reads nothing
