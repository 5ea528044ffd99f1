"""Columns that are stored in several files of a fragment, or in no file."""

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import CorruptDataError, Dataset
from lance_stream.file.versions import FileVersion
from lance_stream.read.field_parts import FilePart, assemble, part_in_file, with_structure
from lance_stream.read.units import unit_of
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.fields import Field, Schema, assign_ids
from lance_stream.schema.projections import project
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import WriteTarget, write_fragments

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        (
            "part",
            pa.struct(
                [("a", pa.int32()), ("b", pa.string()), ("c", pa.struct([("d", pa.int8())]))]
            ),
        ),
        ("list", pa.list_(pa.struct([("x", pa.int16()), ("y", pa.string())]))),
    ]
)
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "part": [{"a": 1, "b": "x", "c": {"d": 5}}, None, {"a": None, "b": "z", "c": None}],
        "list": [[{"x": 1, "y": "p"}, None], None, []],
    },
    schema=SCHEMA,
)


def fragment_in_files(
    ds: Dataset, *column_sets: list[str], schema: Schema | None = None
) -> Dataset:
    """Append the rows as one fragment; each of its files has some of the columns."""
    files = []
    for columns in column_sets:
        part = project(schema or ds.table.schema, columns)
        target = WriteTarget(ds.table.store, part, FileVersion.parse(ds.file_version))
        (written,) = write_fragments(rows_of(to_arrow(part)), target)
        files += written.files
    result = append_fragments(ds.table, [Fragment(0, tuple(files), ROWS.num_rows)])
    return Dataset(result.table)


def rows_of(schema: pa.Schema) -> list[pa.RecordBatch]:
    batch = pa.RecordBatch.from_pylist(ROWS.to_pylist(), schema=schema)
    return [batch]


@pytest.fixture(params=["2.1", "2.2"])
def ds(request: pytest.FixtureRequest) -> Dataset:
    return lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", SCHEMA, file_version=request.param
    )


@pytest.mark.parametrize(
    "column_sets",
    [
        (["id", "part", "list"],),
        (["list"], ["part"], ["id"]),
        (["id", "part.a"], ["part.b", "list", "part.c"]),
        (["part.c.d"], ["id", "part.b"], ["list", "part.a"]),
        (["id", "part", "list.y"], ["list.x"]),
        (["list.x", "part.a", "part.c"], ["id"], ["part.b", "list.y"]),
    ],
)
def test_structs_may_span_several_files(ds: Dataset, column_sets: tuple[list[str], ...]) -> None:
    """Added columns are in new files, even if they are fields of an existing struct."""
    ds = fragment_in_files(ds, *column_sets)
    assert ds.to_table().to_pylist() == ROWS.to_pylist()
    assert ds.to_table(columns=["part.b"])["part"].to_pylist() == [{"b": "x"}, None, {"b": "z"}]
    assert ds.take(row_offsets=[2, 0])["part"].to_pylist() == [
        ROWS["part"].to_pylist()[2],
        ROWS["part"].to_pylist()[0],
    ]


@pytest.mark.floors
@pytest.mark.parametrize("lists", [[[{"x": 1}], None, []], [[{"x": 1}, None], [], []]])
def test_lists_must_agree_across_files(ds: Dataset, lists: list[object]) -> None:
    """Parts of a list with different lengths cannot be joined without inventing values."""
    whole = fragment_in_files(ds, ["id", "part", "list.y"])
    part = project(ds.table.schema, ["list.x"])
    target = WriteTarget(ds.table.store, part, FileVersion.parse(ds.file_version))
    rows = pa.RecordBatch.from_pydict({"list": lists}, schema=to_arrow(part))
    (other,) = write_fragments([rows], target)
    (fragment,) = whole.table.manifest.fragments
    joined = replace(fragment, id=0, files=(*fragment.files, *other.files), row_ids=None)
    odd = Dataset(append_fragments(ds.table, [Fragment(0, joined.files, ROWS.num_rows)]).table)
    with pytest.raises(CorruptDataError, match="lists of 'list' are in 2 files"):
        odd.to_table()


@pytest.mark.floors
def test_fields_missing_in_files_are_null(ds: Dataset) -> None:
    """Columns that are added without values have no file, which the specification reads as null."""
    ds = fragment_in_files(ds, ["id", "part.a", "list.x"])
    assert ds.to_table().to_pylist() == [
        {"id": 1, "part": {"a": 1, "b": None, "c": None}, "list": [{"x": 1, "y": None}, None]},
        {"id": 2, "part": None, "list": None},
        {"id": 3, "part": {"a": None, "b": None, "c": None}, "list": []},
    ]
    assert ds.count_rows("part.b IS NULL") == 3
    assert ds.count_rows("part.a IS NOT NULL") == 1


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["part.c"], {"part": [{"c": None}, None, {"c": None}]}),
        (["part.c.d"], {"part": [{"c": None}, None, {"c": None}]}),
        (["part.b", "id"], {"part": [{"b": None}, None, {"b": None}], "id": [1, 2, 3]}),
        (["list.y"], {"list": [[{"y": None}, None], None, []]}),
    ],
    ids=str,
)
def test_fields_in_no_file_are_null(
    ds: Dataset, columns: list[str], expected: dict[str, list[object]]
) -> None:
    """The struct around the field keeps its nulls."""
    ds = fragment_in_files(ds, ["id", "list.x"], ["part.a"])
    table = ds.to_table(columns=columns)
    assert table.to_pydict() == expected
    taken = ds.take(row_offsets=[2, 0], columns=columns)
    assert taken.to_pydict() == {name: [row[2], row[0]] for name, row in expected.items()}


@pytest.mark.floors
def test_missing_fixed_list_fields_are_null() -> None:
    """The field is null, the lists are not."""
    point = pa.struct([("x", pa.int8()), ("y", pa.int8())])
    schema = pa.schema([("id", pa.int64()), ("p", pa.list_(point, 2))])
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    projected = project(dataset.table.schema, ["id", "p.x"])
    rows = [{"id": 1, "p": [{"x": 1}, None]}, {"id": 2, "p": None}]
    (written,) = write_fragments(
        [pa.RecordBatch.from_pylist(rows, to_arrow(projected))],
        WriteTarget(dataset.table.store, projected, FileVersion.V2_2),
    )
    ds = Dataset(append_fragments(dataset.table, [written]).table)
    assert ds.to_table(["p.y"])["p"].to_pylist() == [[{"y": None}, None], None]
    assert ds.to_table()["p"].to_pylist() == [[{"x": 1, "y": None}, None], None]


@pytest.mark.parametrize(
    "arrow", [pa.int8(), pa.map_(pa.string(), pa.int8()), pa.list_(pa.float32(), 2)], ids=str
)
def test_only_structs_and_lists_have_parts(arrow: pa.DataType) -> None:
    """Two files with the same values contradict each other, and one must not be chosen silently."""
    (field,) = from_arrow(pa.schema([("x", arrow)])).fields
    part = FilePart(field, pa.nulls(3, arrow))
    assert assemble(field, [part], 3).null_count == 3
    with pytest.raises(CorruptDataError, match="column 'x' is in 2 files of one fragment"):
        assemble(field, [part, part], 3)


def test_fixed_size_lists_have_parts() -> None:
    """They have no offsets: only their nulls can contradict each other."""
    item = pa.struct([("x", pa.int8()), ("y", pa.int8())])
    schema = assign_ids(from_arrow(pa.schema([("p", pa.list_(item, 2))])))
    (field,) = schema.fields

    def part(name: str, rows: list[object]) -> FilePart:
        (reduced,) = project(schema, [f"p.{name}"]).fields
        return FilePart(reduced, pa.array(rows, to_arrow(Schema((reduced,))).field(0).type))

    xs = part("x", [[{"x": 1}, {"x": 2}], None, [{"x": 3}, None]])
    ys = part("y", [[{"y": 4}, {"y": None}], None, [{"y": 6}, None]])
    whole = [[{"x": 1, "y": 4}, {"x": 2, "y": None}], None, [{"x": 3, "y": 6}, None]]
    assert assemble(field, [xs, ys], 3).to_pylist() == whole
    full = part("y", [[{"y": 0}] * 2] * 3)
    with pytest.raises(CorruptDataError, match="lists of 'p' are in 2 files"):
        assemble(field, [xs, full], 3)


NESTED = assign_ids(
    from_arrow(
        pa.schema(
            [
                (
                    "s",
                    pa.struct(
                        [
                            ("a", pa.int8()),
                            ("c", pa.struct([("d", pa.int8()), ("e", pa.int8())])),
                            ("b", pa.struct([("f", pa.int8())])),
                            ("m", pa.map_(pa.string(), pa.int8())),
                        ]
                    ),
                )
            ]
        )
    )
)


@pytest.mark.parametrize(
    ("columns", "stored", "read"),
    [
        (["s.a"], ["s.a"], ["s.a"]),
        (["s.a"], ["s.b"], ["s.a", "s.b"]),  # its nulls are those of the struct
        (["s.a", "s.c.d"], ["s.a", "s.c.e"], ["s.a", "s.c.d", "s.c.e"]),
        (["s.c.d", "s.b"], ["s.c.e"], ["s.c.d", "s.c.e", "s.b"]),
        (["s.a"], ["s.m"], ["s.a", "s.m"]),
        (["s.a"], [], ["s.a"]),
    ],
)
def test_structs_need_a_stored_leaf(columns: list[str], stored: list[str], read: list[str]) -> None:
    """Without one, it would be unknown where the structs are null."""
    (whole,) = NESTED.fields
    (requested,) = project(NESTED, columns).fields
    field_ids = {leaf.id for field in project(NESTED, stored).fields for leaf in field.leaves()}
    result = with_structure(requested, whole, field_ids)
    assert _tree(result) == _tree(project(NESTED, read).fields[0])


def _tree(field: Field) -> tuple[str, frozenset[object]]:
    return field.name, frozenset(map(_tree, field.children))


def test_columns_in_no_file_are_null(ds: Dataset) -> None:
    """Filters also evaluate such a column as null."""
    ds = fragment_in_files(ds, ["id"])
    assert ds.to_table()["part"].null_count == 3
    assert ds.count_rows("part.a IS NULL AND id > 1") == 2


def test_required_columns_must_be_in_files() -> None:
    """Nulls in a non-nullable column would break its consumers."""
    schema = pa.schema([("id", pa.int64()), pa.field("x", pa.int8(), nullable=False)])
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    (written,) = write_fragments(
        [pa.RecordBatch.from_pydict({"id": [1]})],
        WriteTarget(dataset.table.store, project(dataset.table.schema, ["id"]), FileVersion.V2_2),
    )
    ds = Dataset(append_fragments(dataset.table, [written]).table)
    with pytest.raises(CorruptDataError, match="column 'x' must not be null"):
        ds.to_table()
    assert ds.to_table(columns=["id"])["id"].to_pylist() == [1]


def test_tombstoned_columns_are_not_read(ds: Dataset) -> None:
    """A tombstone stands for a column whose data was replaced by another file's."""
    ds = fragment_in_files(ds, ["id", "part", "list"])
    (fragment,) = ds.table.manifest.fragments
    (file,) = fragment.files
    ids: list[int] = [
        -2 if field_id == field_named(ds, "id").id else field_id for field_id in file.field_ids
    ]
    emptied = replace(fragment, files=(replace(file, field_ids=tuple(ids)),))
    from lance_stream.read.fragment import read_unit
    from lance_stream.table.fragments.fragment import encode_fragment

    unit = replace(unit_of(ds.table, 0, columns=("id",)), fragment=encode_fragment(emptied))
    assert pa.Table.from_batches(read_unit(unit))["id"].null_count == 3


def field_named(ds: Dataset, name: str) -> Field:
    return next(field for field in ds.table.schema.fields if field.name == name)


def test_columns_without_files_are_null() -> None:
    """Unless they cannot be: a required column must be in a file, if there is any row."""
    (field,) = from_arrow(pa.schema([pa.field("x", pa.int32(), nullable=False)])).fields
    assert assemble(field, [], 0).to_pylist() == []
    assert assemble(replace(field, nullable=True), [], 2).to_pylist() == [None, None]
    with pytest.raises(CorruptDataError, match="column 'x' must not be null, but no data file"):
        assemble(field, [], 1)


def test_lists_are_stored_with_their_items() -> None:
    """The lengths of lists alone are no column."""
    schema = assign_ids(
        from_arrow(pa.schema([("l", pa.list_(pa.int32())), ("s", pa.struct({"a": pa.int8()}))]))
    )
    lists, structs = schema.fields
    assert part_in_file(lists, {child.id for child in lists.walk()}) is lists
    assert part_in_file(structs, {structs.id}) is None
    assert part_in_file(lists, set()) is None
    with pytest.raises(CorruptDataError, match="contains the lists of 'l', but not their items"):
        part_in_file(lists, {lists.id})
    of_structs = assign_ids(
        from_arrow(pa.schema([("l", pa.list_(pa.struct([("x", pa.int8())])))]))
    ).fields[0]
    # Files of version 2.0 name the structs, too, also of those whose fields were dropped.
    assert part_in_file(of_structs, {of_structs.id, of_structs.children[0].id}) is None
