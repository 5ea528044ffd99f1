"""Whole fields: split into leaves, cut into pages, assembled again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from lance_stream.file.v2_1.layouts.pages import LAYOUTS, REFUSED_LAYOUTS
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import field_from_arrow
from lance_stream.schema.fields import Field
from tests.file.v2_1.layouts.conftest import Column

EMPTY_AND_NUMBER = pa.struct([("a", pa.struct([])), ("b", pa.int8())])
LEAF = st.none() | st.integers(-5, 5)
TEXT = st.none() | st.text("abü", max_size=3)


def lists_of(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(items, max_size=4)


DEEP = pa.struct(
    [
        ("a", pa.int8()),
        ("b", pa.list_(pa.struct([("c", pa.large_list(pa.string())), ("d", pa.int32())]))),
        ("e", pa.struct([("f", pa.list_(pa.list_(pa.int64())))])),
    ]
)
ROWS = st.none() | st.fixed_dictionaries(
    {
        "a": LEAF,
        "b": lists_of(st.none() | st.fixed_dictionaries({"c": lists_of(TEXT), "d": LEAF})),
        "e": st.none() | st.fixed_dictionaries({"f": lists_of(lists_of(LEAF))}),
    }
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=12), cut=st.integers(0, 12), data=st.data())
@pytest.mark.essential
def test_nested_lists_and_structs_round_trip(
    columns: Any, rows: list[Any], cut: int, data: st.DataObject
) -> None:
    """Levels of nested fields are easily assigned to the wrong layer."""
    values = pa.array(rows, DEEP)
    version = data.draw(st.sampled_from([FileVersion.V2_1, FileVersion.V2_2]))
    column = columns.write(values[:cut], values[cut:], version=version, max_page_bytes=1)
    read = column.read(0, len(rows))
    read.validate(full=True)
    assert read.to_pylist() == rows
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert column.read(start, stop).to_pylist() == rows[start:stop]
    offsets = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    assert column.take(offsets).to_pylist() == [rows[offset] for offset in offsets]


def test_values_under_nulls_are_not_written(columns: Any) -> None:
    """Invisible values would cost space and could reveal what was masked."""
    whole = pa.array([[1, 2], [3], [4, 5, 6], [7]])
    values = pa.ListArray.from_arrays(
        whole.offsets, whole.values, mask=pa.array([False, True, False, True])
    )
    column = columns.write(values)
    assert column.layout().mini_block_layout.num_items == 5
    assert column.read(0, 4).to_pylist() == [[1, 2], None, [4, 5, 6], None]
    struct = pa.StructArray.from_arrays([whole], ["a"], mask=pa.array([True, False, False, True]))
    column = columns.write(struct)
    assert column.layout().mini_block_layout.num_items == 4
    assert column.read(0, 4).to_pylist() == [None, {"a": [3]}, {"a": [4, 5, 6]}, None]


@pytest.mark.floors
def test_sliced_vectors_in_lists_round_trip(columns: Any) -> None:
    """Arrow itself takes the wrong items from such slices."""
    inner = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(60.0)), 3)
    vectors = pa.FixedSizeListArray.from_arrays(inner, 2).slice(3, 6)
    values = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 6], pa.int32()), vectors, mask=pa.array([False, True, False])
    )
    whole = vectors.to_pylist()
    assert columns.write(values).read(0, 3).to_pylist() == [whole[:2], None, whole[4:]]


def test_all_leaves_share_their_rounds(columns: Any) -> None:
    """Latency of a store must be paid once, not per leaf."""
    rows = [{"a": n, "b": [None, str(n)], "c": None if n % 2 else n} for n in range(5000)]
    column = columns.write(pa.array(rows))
    assert column.read(1000, 1010).to_pylist() == rows[1000:1010]
    assert len(column.rounds) == 2
    column.forget()
    assert column.take([7, 4999]).to_pylist() == [rows[7], rows[4999]]
    assert len(column.rounds) == 2


def test_pages_are_cut_at_requested_sizes(columns: Any) -> None:
    """Small pages cost requests, large ones cost memory."""
    batches = [pa.array(np.arange(1000) + 1000 * n) for n in range(10)]
    column = columns.write(*batches, max_page_bytes=20_000)
    assert [page.length for page in column.pages[0]] == [3000, 3000, 3000, 1000]
    assert [page.priority for page in column.pages[0]] == [0, 3000, 6000, 9000]
    assert column.read(0, 10_000).equals(pa.concat_arrays(batches))
    column.rounds.clear()
    assert column.read(2999, 6001).to_pylist() == list(range(2999, 6001))
    assert [len(ranges) for ranges in column.rounds] == [3]
    assert column.take([0, 2999, 3000, 9999]).to_pylist() == [0, 2999, 3000, 9999]


def test_pages_with_and_without_nulls_concatenate(columns: Any) -> None:
    """Pages declare only the levels that they need, so the same level differs between them."""
    batches = [[[1]], [[], [2]], [None, [3, None]], [[]], [[None]]]
    values = [pa.array(rows, pa.list_(pa.int16())) for rows in batches]
    column = columns.write(*values, max_page_bytes=1)
    assert len(column.pages[0]) == 5
    assert column.read(0, 7).to_pylist() == [row for rows in batches for row in rows]


def test_different_dictionaries_are_unified(columns: Any) -> None:
    """Indices of one page mean other items in the next."""
    batches = [pa.array(words).dictionary_encode() for words in (["a", "b"], ["b", "c", None])]
    for limit in (1, 8 << 20):
        column = columns.write(*batches, max_page_bytes=limit)
        assert column.read(0, 5).to_pylist() == ["a", "b", "b", "c", None]


@pytest.mark.floors
def test_unmergeable_dictionaries_stay_separate_pages(
    columns: Any,
) -> None:
    """Together they are too large for their index type."""
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [
        pa.DictionaryArray.from_arrays(
            pa.array(np.arange(100, dtype=np.int8)), pa.array([f"{n} {m}" for m in range(100)])
        ).cast(kind)
        for n in range(2)
    ]
    column = columns.write(*batches)
    assert len(column.pages[0]) == 2
    assert column.read(50, 100).to_pylist() == [f"0 {m}" for m in range(50, 100)]
    with pytest.raises(InvalidInputError, match="read fewer rows"):
        column.read(0, 200)


def test_null_structs_nullify_required_fields(columns: Any) -> None:
    """Other programs read a field without its struct, and need to see that it has no value."""
    kind = pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.int32())])
    values = pa.array([{"a": 1, "b": None}, None, {"a": 3, "b": 4}], kind)
    read = columns.write(values).read(0, 3)
    assert read.type == kind
    assert read.to_pylist() == values.to_pylist()
    assert read.field("a").to_pylist() == [1, None, 3]
    assert read.field("b").to_pylist() == [None, None, 4]


def test_a_missing_leaf_reads_as_nulls(columns: Any) -> None:
    """Files from before a field was added stay valid."""
    column = columns.write(pa.array([{"a": 1, "b": "x"}, None, {"a": 2, "b": "y"}]))
    (_, b) = column.field.leaves()
    del column.pages_of_leaf[b.id]
    assert column.read(0, 3).to_pylist() == [{"a": 1, "b": None}, None, {"a": 2, "b": None}]


def test_fields_without_any_column_are_corrupt(columns: Any) -> None:
    """Without a column even the number of rows is unknown."""
    column = columns.write(pa.array([1]))
    column.pages_of_leaf.clear()
    with pytest.raises(CorruptDataError, match="the file has no column"):
        column.read(0, 1)


def test_rows_past_the_pages_are_corrupt(columns: Any) -> None:
    """A missing row must not be invented, while an empty selection needs no page."""
    column = columns.write(pa.array([["a"], None]))
    assert column.read(1, 1).to_pylist() == []
    assert column.take([]).type == column.read(0, 2).type
    with pytest.raises(CorruptDataError, match="the pages of the column have 2"):
        column.read(0, 3)


def test_unequal_struct_fields_are_corrupt(columns: Any) -> None:
    """Fields of one struct cannot be joined without inventing values."""
    kind = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    column = columns.write(pa.array([[{"a": 1, "b": 2}]] * 3, kind))
    other = columns.write(pa.array([[{"a": 1, "b": 2}] * 2] * 3, kind))
    shift = len(column.data)
    (page,) = other.pages[1]
    moved = [ByteRange(buffer.start + shift, buffer.stop + shift) for buffer in page.buffers]
    column.pages[1] = [replace(page, buffers=tuple(moved))]
    column.data += other.data
    column.forget()
    with pytest.raises(CorruptDataError, match="not of one length"):
        column.read(0, 3)


def test_layouts_are_read_or_refused() -> None:
    """Every layout that the proto names is in exactly one of the two tables."""
    names = {field.name for field in pb.PageLayout.DESCRIPTOR.oneofs_by_name["layout"].fields}
    assert names == LAYOUTS.keys() | REFUSED_LAYOUTS.keys()
    assert not LAYOUTS.keys() & REFUSED_LAYOUTS.keys()


RANDOM = np.random.default_rng(5).bytes(5001)


def test_unsupported_layouts_are_named(columns: Any) -> None:
    """The user learns which layout another writer chose."""
    message = pb.PageLayout()
    message.sparse_layout.SetInParent()
    with pytest.raises(UnsupportedFeatureError, match="sparse_layout"):
        columns.from_buffers(pa.int8(), message, 1).read(0, 1)
    with pytest.raises(UnsupportedFeatureError, match="unknown"):
        columns.from_buffers(pa.int8(), pb.PageLayout(), 1).read(0, 1)


@pytest.mark.parametrize(
    ("values", "version", "layout"),
    [
        (pa.array([1, 2]), FileVersion.V2_1, "full_zip_layout"),
        (pa.array([1, None]), FileVersion.V2_1, "mini_block_layout"),
        (pa.array([True, False]), FileVersion.V2_2, "mini_block_layout"),
        (pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)), None, "full_zip_layout"),
        (pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), None, "mini_block_layout"),
        (pa.array([[1.0] * 64, None], pa.list_(pa.float32(), 64)), None, "full_zip_layout"),
        (pa.array([[1], [2, 3]]), None, "mini_block_layout"),
        (pa.array(["a", "b"]), None, "mini_block_layout"),
        (pa.array(["a"] * 100 + ["x" * 300]), None, "mini_block_layout"),
        (pa.array(["a"] * 100 + ["x" * 5000]), FileVersion.V2_1, "full_zip_layout"),
        (pa.array(["a"] * 100 + ["x" * 5000]), FileVersion.V2_2, "mini_block_layout"),
        (pa.array([RANDOM[:5000], RANDOM[1:]], pa.binary()), None, "full_zip_layout"),
        (pa.array(["x" * 200, "y" * 300]), None, "full_zip_layout"),
        (pa.array(["a", "b"]).dictionary_encode(), None, "mini_block_layout"),
        (pa.nulls(3), None, "constant_layout"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_layouts_suit_their_values(
    columns: Any, values: pa.Array, version: FileVersion | None, layout: str
) -> None:
    """Wide values, narrow values and constants each have the layout that Lance chooses."""
    for item in [version] if version else [FileVersion.V2_1, FileVersion.V2_2]:
        column = columns.write(values, version=item)
        assert column.layouts() == [layout]
        assert column.read(0, len(values)).equals(values)


def test_plain_empty_structs_are_written(columns: Any) -> None:
    """No fields, no nulls and no lists above them."""
    values = pa.array([{}, {}, {}], pa.struct([]))
    column = columns.write(values)
    assert column.read(0, 2).equals(values[:2])
    assert column.take([0, 2]).equals(values[:2])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([{}, None], pa.struct([])),
        pa.array([[{}]], pa.list_(pa.struct([]))),
        pa.array([{"a": {}}, None], pa.struct([("a", pa.struct([]))])),
    ],
    ids=str,
)
def test_empty_structs_in_lists_are_refused(columns: Any, values: pa.Array) -> None:
    """No leaf could store the levels of the lists and nulls; the error names the column."""
    with pytest.raises(InvalidInputError, match="without fields") as caught:
        columns.write(values)
    assert [note.partition(":")[0] for note in caught.value.__notes__] == ["column"]


@pytest.mark.floors
def test_an_empty_struct_leaves_its_siblings(columns: Any) -> None:
    """pylance writes such structs, too, but misreads their sibling fields."""
    values = pa.array([{"a": {}, "b": 1}, {"a": {}, "b": 2}], EMPTY_AND_NUMBER)
    assert columns.write(values).read(0, 2).equals(values)


def test_layered_empty_structs_are_refused(columns: Any) -> None:
    """Without fields there are no levels from which lists could be built."""
    column = columns.write(pa.array([{}, {}], pa.struct([])))
    layout = column.layout()
    layout.constant_layout.layers.append(pb.REPDEF_NULLABLE_LIST)
    column = column.with_layout(layout)
    with pytest.raises(UnsupportedFeatureError, match="without fields"):
        column.read(0, 2)


POINTS = pa.list_(pa.struct([("x", pa.int8()), ("s", pa.string())]), 2)
DEEP_POINTS = pa.struct([("p", pa.list_(pa.struct([("q", POINTS)]), 3))])
POINT = st.none() | st.fixed_dictionaries({"x": LEAF, "s": TEXT})
POINT_ROWS = st.none() | st.fixed_dictionaries(
    {
        "p": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries({"q": st.none() | st.lists(POINT, min_size=2, max_size=2)}),
            min_size=3,
            max_size=3,
        )
    }
)
TAGS = pa.map_(pa.string(), pa.list_(pa.map_(pa.int8(), pa.struct([("x", pa.int8())]))))
TAG_ROWS = st.none() | st.lists(
    st.tuples(
        st.text("ab", max_size=2),
        lists_of(
            st.none()
            | st.lists(
                st.tuples(st.integers(0, 9), st.none() | st.fixed_dictionaries({"x": LEAF})),
                max_size=3,
            )
        ),
    ),
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([(POINT_ROWS, DEEP_POINTS), (TAG_ROWS, TAGS)]),
    cut=st.integers(0, 12),
    data=st.data(),
)
def test_maps_and_fixed_lists_round_trip(
    columns: Any, kind: tuple[Any, pa.DataType], cut: int, data: st.DataObject
) -> None:
    """Version 2.2 added both, and their validity lies in different layers."""
    rows = data.draw(st.lists(kind[0], min_size=1, max_size=12))
    values = pa.array([None, *rows], kind[1])[1:]
    column = columns.write(values[:cut], values[cut:], max_page_bytes=1)
    read = column.read(0, len(rows))
    read.validate(full=True)
    assert read.equals(values)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert column.read(start, stop).equals(values[start:stop])
    offsets = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    assert column.take(offsets).equals(values.take(pa.array(offsets, pa.int64())))


def test_missing_fixed_size_lists_are_corrupt(columns: Any) -> None:
    """The items of a missing row must not be taken from elsewhere."""
    column = columns.write(pa.array([[{"x": 1, "s": None}] * 2] * 3, POINTS))
    for rows in (range(4), [3]):
        with pytest.raises(CorruptDataError, match="was requested"):
            column.take(rows) if isinstance(rows, list) else column.read(0, 4)


def test_lists_of_fixed_lists_are_refused(columns: Any) -> None:
    """Fixed-size lists of structs have no defined levels inside of lists."""
    column = columns.write(pa.array([[1]], pa.list_(pa.int8())))
    column.field = field_from_arrow(pa.field("c", pa.list_(POINTS)))
    with pytest.raises(UnsupportedFeatureError, match="fixed-size lists of structs"):
        column.read(0, 1)


def test_null_map_keys_are_corrupt(columns: Any) -> None:
    """Arrow forbids null keys and crashes on them."""
    entry = pa.struct([("k", pa.int8()), ("v", pa.int8())])
    column = columns.write(pa.array([[{"k": None, "v": 1}, {"k": 2, "v": 2}]], pa.list_(entry)))
    as_map = field_from_arrow(pa.field("c", pa.map_(pa.int8(), pa.int8())))
    for stored in (as_map, replace(as_map, children=column.field.children)):
        column.field = _with_ids_of(stored, column.field)
        with pytest.raises(CorruptDataError, match="of a map"):
            column.read(0, 1)


def _with_ids_of(one: Field, other: Field) -> Field:
    children = tuple(map(_with_ids_of, one.children, other.children))
    return replace(one, id=other.id, children=children)


@pytest.mark.parametrize("kind", [DEEP, DEEP_POINTS, TAGS], ids=["lists", "points", "maps"])
def test_flipped_bytes_do_no_harm(columns: Any, kind: pa.DataType) -> None:
    """Stored bytes are not trusted: damage may change values, but never raise a foreign error."""
    random = np.random.default_rng(0)
    item = {"x": 1, "s": "ab"}
    rows: Any = {
        DEEP: {"a": 1, "b": [{"c": ["x", None], "d": 5}, None], "e": {"f": [[1, 2], []]}},
        DEEP_POINTS: {"p": [{"q": [item, None]}, None, {"q": None}]},
        TAGS: [("a", [[(1, {"x": 2}), (3, None)], None]), ("b", None)],
    }[kind]
    values = pa.array([rows, None] * 20, kind)
    sound = columns.write(values, max_page_bytes=400)
    outcomes = set()
    for position in random.integers(0, len(sound.data), 150).tolist():
        flipped = bytearray(sound.data)
        flipped[position] ^= 1 << int(random.integers(8))
        damaged = Column(sound.field, sound.pages, bytes(flipped))
        try:
            read = damaged.read(0, len(values))
            read.validate()
            assert len(read) == len(values)
            outcomes.add("values")
        except BadDataError:
            outcomes.add("bad data")
    assert outcomes == {"values", "bad data"}


def test_absurd_fixed_size_lists_allocate_nothing(
    columns: Any,
) -> None:
    """The dimension comes from the stored schema, and nesting multiplies it."""
    column = columns.write(pa.array([[{"x": 1, "s": None}] * 2] * 3, POINTS))
    large = replace(column.field, logical_type="fixed_size_list:struct:2147483647")
    (struct,) = large.children
    inner = replace(struct, children=(replace(large, id=90, children=(struct,)),))
    deep = replace(large, children=(replace(inner, id=91),))
    deeper = replace(large, children=(replace(inner, children=(replace(deep, id=92),)),))
    for field in (large, deep, deeper):
        column.field = field
        for rows in ([0, 2], [2]):
            with pytest.raises((BadDataError, InvalidInputError)):
                column.take(rows)
        with pytest.raises((BadDataError, InvalidInputError)):
            column.read(0, 3)


@pytest.mark.floors
def test_different_pages_are_read_as_one(columns: Any) -> None:
    """Some share an encoding, some have nulls, one has a dictionary, one is constant."""
    parts = [
        pa.array([[1, 2], [3]] * 40),
        pa.array([[4, 5], [6, 7]] * 40),
        pa.array([[1, None], None, []] * 30),
        pa.array([None, []] * 30, pa.list_(pa.int64())),
        pa.array([[8], [9, 10, 11]] * 40),
        pa.array([[12]] * 9),
    ]
    values = pa.concat_arrays(parts)
    for version in (FileVersion.V2_1, FileVersion.V2_2):
        column = columns.write(*parts, version=version, max_page_bytes=1)
        assert len(column.pages[0]) == len(parts)
        for start, stop in [(0, len(values)), (70, 200), (85, 90), (79, 81), (330, len(values))]:
            assert column.read(start, stop).equals(values[start:stop])
        for offsets in ([0, 79, 80, 240, len(values) - 1], [1, 3, 81]):
            assert column.take(offsets).equals(values.take(pa.array(offsets)))


def test_damage_is_reported_with_its_page(columns: Any) -> None:
    """The page shows which rows can still be read."""
    parts = [pa.array([[n, n + 1], [n + 2]] * 40) for n in range(4)]
    column = columns.write(*parts, max_page_bytes=1)
    assert [len(pages) for pages in column.pages] == [4]
    head = column.pages[0][2].buffers[1].start
    column.data = column.data[:head] + b"\xff\xff" + column.data[head + 2 :]
    with pytest.raises(CorruptDataError) as refused:
        column.read(0, 320)
    assert refused.value.__notes__ == ["page 2 of 4 of the column"]
    assert column.read(0, 160).equals(pa.concat_arrays(parts[:2]))
