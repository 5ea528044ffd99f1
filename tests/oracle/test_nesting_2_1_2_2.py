"""Nested columns of versions 2.1 and 2.2: what pylance writes we read, and the other way round.

Maps and fixed-size lists of structs came with 2.2. The shapes have nulls and empties on every
level; hypothesis generates further types.
"""

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader

from lance_stream import create_dataset
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.file.versions import FileVersion
from tests.oracle.test_files_2_1_2_2 import (
    Reading,
    assert_pylance_reads,
    assert_we_read,
    write_by_pylance,
    write_by_us,
)

pytestmark = pytest.mark.oracle

Random = np.random.Generator

POINT = pa.struct([("x", pa.int32()), ("name", pa.string())])
POINTS = pa.list_(POINT, 3)
VECTOR = pa.list_(pa.float32(), 2)
TAGS = pa.map_(pa.string(), pa.int64())
CODES = pa.dictionary(pa.int8(), pa.string())

TYPES: dict[str, pa.DataType] = {
    "map": TAGS,
    "map of long strings": pa.map_(pa.int32(), pa.large_binary()),
    "map of lists": pa.map_(pa.string(), pa.list_(pa.int64())),
    "map of lists of structs": pa.map_(pa.string(), pa.list_(POINT)),
    "map of maps": pa.map_(pa.int16(), TAGS),
    "map of structs of maps": pa.map_(pa.int16(), pa.struct([("m", TAGS), ("n", pa.bool_())])),
    "map of vectors": pa.map_(pa.string(), VECTOR),
    "map of codes": pa.map_(CODES, CODES),
    "list of maps": pa.list_(TAGS),
    "large list of lists of maps": pa.large_list(pa.list_(TAGS)),
    "struct of maps": pa.struct([("a", TAGS), ("b", pa.list_(TAGS)), ("c", pa.int8())]),
    "map whose values must be there": pa.map_(
        pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int8(), nullable=False)
    ),
    "points": POINTS,
    "struct of points": pa.struct([("p", POINTS)]),
    "points of points": pa.list_(pa.struct([("p", POINTS), ("q", POINTS)]), 2),
    "structs of vectors": pa.list_(pa.struct([("v", VECTOR), ("b", pa.bool_())]), 2),
    "structs of codes": pa.list_(pa.struct([("c", CODES), ("d", pa.decimal128(25, 2))]), 4),
    "structs of structs": pa.list_(
        pa.struct([("s", pa.struct([("t", pa.timestamp("us"))])), ("u", pa.float16())]), 2
    ),
    "struct without fields": pa.struct([]),
}


def values_of(arrow: pa.DataType, count: int, random: Random, rate: float) -> pa.Array:
    """An array of a type, with nulls and empties on every level."""
    types = pa.types
    mask = random.random(count) < rate if arrow.num_fields else None
    if types.is_struct(arrow):
        if not arrow.num_fields:
            return pa.array([{}] * count, arrow)
        parts = [field_of(array, count, random, rate) for array in arrow]
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=pa.array(mask))
    if types.is_fixed_size_list(arrow):
        items = field_of(arrow.value_field, count * arrow.list_size, random, rate)
        return pa.FixedSizeListArray.from_arrays(items, type=arrow, mask=pa.array(mask))
    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_map(arrow):
        lengths = random.integers(0, 4, count) * (random.random(count) < 0.8)
        word = pa.int64() if types.is_large_list(arrow) else pa.int32()
        offsets = pa.array(
            np.concatenate([[0], np.cumsum(lengths)]), word, mask=np.append(mask, False)
        )
        num_items = int(lengths.sum())
        if types.is_map(arrow):
            keys = field_of(arrow.key_field, num_items, random, rate)
            items = field_of(arrow.item_field, num_items, random, rate)
            return pa.MapArray.from_arrays(offsets, keys, items, type=arrow)
        kind = pa.LargeListArray if types.is_large_list(arrow) else pa.ListArray
        items = field_of(arrow.value_field, num_items, random, rate)
        return kind.from_arrays(offsets, items, type=arrow)
    if types.is_dictionary(arrow):
        items = pa.array(["alpha", "beta", "gamma"], arrow.value_type)
        indices = values_of(arrow.index_type, count, random, 0).to_numpy() % len(items)
        mask = random.random(count) < rate
        return pa.DictionaryArray.from_arrays(pa.array(indices, arrow.index_type, mask=mask), items)
    numbers = pa.array(random.integers(0, 100, count), mask=random.random(count) < rate)
    if types.is_large_binary(arrow):
        return pa.array(
            [None if number is None else b"q" * number * 9 for number in numbers.to_pylist()], arrow
        )
    if types.is_boolean(arrow):
        return numbers.cast(pa.int8()).cast(arrow)
    return (
        numbers.cast(pa.float32()).cast(arrow) if types.is_floating(arrow) else numbers.cast(arrow)
    )


def field_of(field: pa.Field, count: int, random: Random, rate: float) -> pa.Array:
    return values_of(field.type, count, random, rate if field.nullable else 0)


def check_both_ways(folder: Path, version: FileVersion, array: pa.Array, cut: int) -> None:
    """pylance is given whole arrays, as it does not write all slices."""
    table = pa.table({"c": array})
    whole = table.to_batches()
    write_by_pylance(whole, folder / "theirs.lance", version)
    assert_we_read(folder / "theirs.lance", table)
    sliced = pa.concat_arrays([array, array])
    parts = [sliced.slice(len(array), cut), sliced.slice(cut, len(array) - cut)]
    batches = [pa.record_batch([part], schema=table.schema) for part in parts]
    write_by_us(batches, folder / "ours.lance", version, max_page_bytes=1000)
    assert_we_read(folder / "ours.lance", table)
    assert_pylance_reads(folder / "ours.lance", table)


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2])
def test_null_required_structs_read_alike(tmp_path: Path, version: FileVersion) -> None:
    """Arrow allows null structs whose fields declare no nulls."""
    point = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    arrow = pa.struct([pa.field("a", point, nullable=False)])
    array = pa.nulls(3, arrow)
    check_both_ways(tmp_path, version, array, 1)
    assert array.null_count == 3


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2])
def test_parts_of_null_structs_are_null(tmp_path: Path, version: FileVersion) -> None:
    """Other programs read a field of a struct alone, without asking whether the struct is null."""
    inner = pa.struct([("n", pa.int64()), ("v", VECTOR)])
    arrow = pa.struct([("x", pa.int64()), ("s", inner), ("l", pa.list_(pa.int64())), ("c", CODES)])
    row = {"x": 7, "s": {"n": 8, "v": [1.0, 2.0]}, "l": [9], "c": "alpha"}
    structs = pa.array([row, None, {**row, "s": None}], arrow)
    hidden = pa.array([row, row, row], arrow)
    hidden = pa.StructArray.from_arrays(
        hidden.flatten(), fields=list(arrow), mask=pa.array([False, True, False])
    )
    for number, values in enumerate((structs, hidden)):
        uri, table = str(tmp_path / f"table{number}"), pa.table({"id": range(3), "st": values})
        ds = create_dataset(uri, table, file_version=str(version))
        theirs = lance.dataset(uri)
        for part in ("x", "s", "s.n", "s.v", "l", "c"):
            condition = f"st.{part} IS NULL"
            expected = ds.to_table(["id"], filter=condition)
            assert 1 in expected["id"].to_pylist()
            assert theirs.to_table(["id"], filter=condition).equals(expected), part
        assert theirs.to_table({"x": "st.x"}, filter="id = 1")["x"].to_pylist() == [None]


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("count", "rate"), [(1, 0), (700, 0), (700, 0.3), (9, 1)])
def test_maps_and_struct_lists_read_alike(
    tmp_path: Path, name: str, count: int, rate: float
) -> None:
    """Version 2.2 added both, and pylance is the judge of their levels."""
    array = values_of(TYPES[name], count, np.random.default_rng(len(name)), rate)
    check_both_ways(tmp_path, FileVersion.V2_2, array, count // 3)


STRUCTS_OF_A_LIST = pa.struct([("l", pa.list_(pa.int64()))])

LISTS_BELOW_STRUCTS = [
    pa.struct([("l", pa.list_(pa.int64()))]),
    pa.struct([("i", pa.int64()), ("l", pa.list_(pa.string())), ("j", pa.int8())]),
    pa.struct([("s", pa.struct([("l", pa.large_list(pa.int16()))])), ("t", pa.string())]),
    pa.list_(pa.list_(pa.int64())),
    pa.struct([("m", TAGS)]),
    pa.list_(STRUCTS_OF_A_LIST),
    pa.struct([("o", pa.list_(STRUCTS_OF_A_LIST))]),
    pa.list_(pa.list_(STRUCTS_OF_A_LIST)),
    pa.list_(pa.struct([("s", STRUCTS_OF_A_LIST), ("i", pa.int8())])),
    pa.list_(pa.struct([("l", pa.list_(STRUCTS_OF_A_LIST))])),
    pa.list_(pa.struct([("l", pa.large_list(POINT))])),
    pa.list_(pa.struct([("m", TAGS)])),
    pa.map_(pa.string(), STRUCTS_OF_A_LIST),
    pa.map_(pa.string(), pa.list_(POINT)),
]


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2])
@pytest.mark.parametrize("arrow", LISTS_BELOW_STRUCTS, ids=str)
def test_pages_with_different_outer_nulls_concatenate(
    tmp_path: Path, version: FileVersion, arrow: pa.DataType
) -> None:
    """pylance cannot read all such columns that it wrote itself."""
    if version is FileVersion.V2_1 and "map<" in str(arrow):
        pytest.skip("maps came with 2.2")
    random = np.random.default_rng(5)
    whole = values_of(arrow, 200, random, 0)
    parts = [whole, values_of(arrow, 200, random, 0.4), pa.nulls(200, arrow), whole]
    for order in (parts, parts[1:], parts[2:] + parts[1:2]):
        table = pa.table({"c": pa.chunked_array(order)})
        path = tmp_path / f"{len(order)} {order[0].null_count}.lance"
        batches = [pa.record_batch([value], schema=table.schema) for value in order]
        write_by_us(batches, path, version, max_page_bytes=100)
        assert_we_read(path, table)
        assert_pylance_reads(path, table)


@pytest.mark.quick_cases(one_in=6)
@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2])
@pytest.mark.parametrize("arrow", LISTS_BELOW_STRUCTS, ids=str)
def test_pages_of_lists_in_structs_concatenate(
    tmp_path: Path, version: FileVersion, arrow: pa.DataType
) -> None:
    """Each page has nulls or empty lists in some layers only; some pages have none."""
    if version is FileVersion.V2_1 and "map<" in str(arrow):
        pytest.skip("maps came with 2.2")
    gaps = [(depth, kind) for depth in range(depth_of(arrow)) for kind in ("null", "empty")]
    random = np.random.default_rng(3)
    pages = [
        pa.array([value_with(arrow, chosen, random) for _ in range(12)], arrow)
        for chosen in ([], *([gap] for gap in gaps), gaps)
    ]
    for number, pair in enumerate(permutations([*pages, pa.nulls(12, arrow)], 2)):
        table = pa.table({"c": pa.chunked_array(pair)})
        batches = [pa.record_batch([value], schema=table.schema) for value in pair]
        path = tmp_path / f"{number}.lance"
        write_by_us(batches, path, version, max_page_bytes=10)
        assert_we_read(path, table)
        assert_pylance_reads(path, table)


def depth_of(arrow: pa.DataType) -> int:
    """How many types are within each other, the leaf's among them."""
    return 1 + max((depth_of(field.type) for field in parts_of(arrow)), default=0)


def parts_of(arrow: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(arrow):
        return [arrow.item_field]
    return [arrow.field(index) for index in range(arrow.num_fields)]


def value_with(arrow: pa.DataType, gaps: Sequence[tuple[int, str]], random: Random) -> Any:
    """A value that may be null, or an empty list, at some depths only."""
    kind = next((kind for depth, kind in gaps if depth == 0 and random.random() < 0.25), None)
    below = [(depth - 1, kind) for depth, kind in gaps]
    values = [[value_with(field.type, below, random) for _ in "ab"] for field in parts_of(arrow)]
    if kind == "null":
        return None
    if pa.types.is_struct(arrow):
        return {entry.name: some[0] for entry, some in zip(parts_of(arrow), values, strict=True)}
    if not values:
        return "text" if pa.types.is_string(arrow) else int(random.integers(0, 100))
    if kind == "empty":
        return []
    return list(zip("ab", values[0], strict=True)) if pa.types.is_map(arrow) else values[0]


LEAVES = [pa.int64(), pa.string(), pa.bool_(), VECTOR, CODES, pa.large_binary(), pa.float16()]


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(pa.field, st.sampled_from("abc"), types, st.booleans())
    return st.one_of(
        fields.map(pa.list_),
        fields.map(pa.large_list),
        st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name).map(pa.struct),
    )


def with_maps(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    keys = st.sampled_from([pa.string(), pa.int8()])
    return nested(types) | st.builds(pa.map_, keys, types)


def with_points(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    # pylance cannot read, of its own files either, a part that may not be null below a null vector.
    fields = st.builds(pa.field, st.sampled_from("abc"), types)
    structs = fields.map(lambda field: pa.struct([field]))
    return structs | st.builds(pa.list_, structs, st.integers(1, 3))


TYPES_OF_2_1 = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=5)
TYPES_OF_2_2 = st.one_of(
    st.recursive(st.sampled_from(LEAVES), with_maps, max_leaves=5),
    st.recursive(st.sampled_from(LEAVES), with_points, max_leaves=5),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize(
    ("version", "types"), [(FileVersion.V2_1, TYPES_OF_2_1), (FileVersion.V2_2, TYPES_OF_2_2)]
)
@pytest.mark.essential
def test_arbitrary_nestings_read_alike(
    tmp_path: Path, version: FileVersion, types: Any, data: st.DataObject
) -> None:
    """Random types find combinations of layers that no single test has."""
    arrow = data.draw(types)
    seed, count = data.draw(st.integers(0, 2**20)), data.draw(st.sampled_from([1, 20, 150]))
    rate = data.draw(st.sampled_from([0, 0.2, 0.9]))
    array = values_of(arrow, count, np.random.default_rng(seed), rate)
    check_both_ways(tmp_path, version, array, data.draw(st.integers(0, count)))


def test_unreadable_nesting_is_refused_by_name(
    tmp_path: Path,
) -> None:
    """Pylance writes fixed-size lists of structs within lists, and cannot read them."""
    path = tmp_path / "theirs.lance"
    table = pa.table({"c": pa.array([[[{"x": 1, "name": "a"}] * 3]], pa.list_(POINTS))})
    write_by_pylance(table.to_batches(), path, FileVersion.V2_2)
    with pytest.raises(Exception, match="Not yet supported"):
        LanceFileReader(str(path)).read_all().to_table()
    with pytest.raises(UnsupportedFeatureError, match="fixed-size lists of structs"):
        Reading(path).read(0, 1)


def test_siblings_of_empty_structs_read_correctly(tmp_path: Path) -> None:
    """pylance misreads its own file: it loses the values of `b`."""
    path = tmp_path / "theirs.lance"
    arrow = pa.struct([("a", pa.struct([])), ("b", pa.int8())])
    table = pa.table({"c": pa.array([{"a": {}, "b": 1}, {"a": {}, "b": 2}], arrow)})
    write_by_pylance(table.to_batches(), path, FileVersion.V2_2)
    assert_we_read(path, table)
