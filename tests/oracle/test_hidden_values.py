"""Values behind nulls, which are undefined in Arrow: they must have no effect.

An array is made with such values at every level of its nesting, values that could not be cast,
and cut out of a longer one. What is cast, digested, written by us and read by both writers has to
be what the same rows give without them.
"""

import random
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.ledger.row_digests import digest_of
from lance_stream.write.casting import cast_batch

pytestmark = pytest.mark.oracle

LEAVES: Final[list[tuple[pa.DataType, pa.DataType, list[Any], Any]]] = [
    # as it comes, as the table has it, values, what stands behind a null
    (pa.int64(), pa.int64(), [0, 5, -(2**60)], 7),
    (pa.int64(), pa.uint32(), [0, 2**32 - 1], -1),
    (pa.float32(), pa.float16(), [0.5, -2.0], 1e30),
    (pa.decimal128(20, 0), pa.uint64(), [Decimal(0), Decimal(2**64 - 1)], Decimal(-1)),
    (pa.timestamp("s"), pa.timestamp("ns"), [0, 10**9], 2**60),
    (pa.string(), pa.large_string(), ["", "ü" * 9], "x"),
    (pa.binary(), pa.binary(2), [b"ab", b"cd"], b"abc"),
    (pa.bool_(), pa.bool_(), [True, False], True),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), ["a", "b"], None),
    (
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int16(), pa.string()),
        ["a", "b"],
        None,
    ),
]
NO_INDEX: Final = 99


class Case:
    """A column of a random type, as it comes and as the table has it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.incoming, self.target = self._types(depth=3)

    def _types(self, depth: int) -> tuple[pa.DataType, pa.DataType]:
        kinds = ("leaf", "struct", "struct", "list", "to vector", "vector", "map")
        kind = self.random.choice(kinds) if depth else "leaf"
        if kind == "leaf":
            incoming, target, *_ = self.random.choice(LEAVES)
            return incoming, target
        if kind == "struct":
            parts = {name: self._types(depth - 1) for name in "ab"[: self.random.randint(1, 2)]}
            pairs = [
                pa.struct([pa.field(name, part[side]) for name, part in parts.items()])
                for side in (0, 1)
            ]
            return pairs[0], pairs[1]
        if kind in ("to vector", "vector"):
            incoming, target = (pa.float32(), pa.float64())
            list_of = pa.list_(incoming) if kind == "to vector" else pa.list_(incoming, 2)
            return list_of, pa.list_(target, 2)
        incoming, target = self._types(depth - 1)
        if kind == "map":
            return pa.map_(pa.string(), incoming), pa.map_(pa.large_string(), target)
        return pa.list_(incoming), self.random.choice([pa.list_, pa.large_list])(target)

    def value(self, arrow: pa.DataType, target: pa.DataType, *, null: bool = True) -> Any:
        """Return a value that can be cast; null may be one where it is allowed."""
        if null and self.random.random() < 0.3:
            return None
        if pa.types.is_struct(arrow):
            return {
                array.name: self.value(array.type, target.field(array.name).type) for array in arrow
            }
        if pa.types.is_map(arrow):
            keys = self.random.sample("klm", self.random.randint(0, 3))
            return [(key, self.value(arrow.item_type, target.item_type)) for key in keys]
        if pa.types.is_list(arrow) or pa.types.is_fixed_size_list(arrow):
            is_vector = pa.types.is_fixed_size_list(target)
            size = 2 if is_vector else self.random.randint(0, 3)
            return [
                self.value(arrow.value_type, target.value_type, null=not is_vector)
                for _ in range(size)
            ]
        (values,) = (
            (leaf[2] for leaf in LEAVES if leaf[:2] == (arrow, target))
            if (any(leaf[:2] == (arrow, target) for leaf in LEAVES))
            else ([1.5, 2.5],)
        )
        return self.random.choice(values)


def hidden(arrow: pa.DataType) -> Any:
    """Return what stands behind a null of a type."""
    if pa.types.is_struct(arrow):
        return {array.name: hidden(array.type) for array in arrow}
    if pa.types.is_map(arrow):
        return [("z", hidden(arrow.item_type))]
    if pa.types.is_fixed_size_list(arrow):
        return [hidden(arrow.value_type)] * arrow.list_size
    if pa.types.is_list(arrow):
        return [hidden(arrow.value_type)] * 3
    if pa.types.is_dictionary(arrow):
        return NO_INDEX
    return next((leaf[3] for leaf in LEAVES if leaf[0] == arrow), 9.5)


def build(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Return an array with something behind each null, at every level."""
    mask = pa.array([value is None for value in values], pa.bool_())
    filled = [hidden(arrow) if value is None else value for value in values]
    if pa.types.is_struct(arrow):
        parts = [build([row[array.name] for row in filled], array.type) for array in arrow]
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=mask)
    if pa.types.is_dictionary(arrow):
        indices = [value if value == NO_INDEX else "ab".index(value) for value in filled]
        words = pa.array(["a", "b"], arrow.value_type)
        # valid where it stands behind a null struct or list: that is what hides it
        codes = pa.array(indices, arrow.index_type)
        return pa.DictionaryArray.from_arrays(codes, words, safe=False)
    if pa.types.is_map(arrow) or pa.types.is_list(arrow):
        items = [value for row in filled for value in row]
        offsets = pa.array([sum(map(len, filled[:end])) for end in range(len(filled) + 1)], "int32")
        if pa.types.is_map(arrow):
            parts = [
                build([item[index] for item in items], value)
                for index, value in enumerate((arrow.key_type, arrow.item_type))
            ]
            entries = pa.StructArray.from_arrays(parts, fields=[arrow.key_field, arrow.item_field])
        else:
            entries = build(items, arrow.value_type)
        valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(
            arrow, len(values), [valid, offsets.buffers()[1]], children=[entries]
        )
    if pa.types.is_fixed_size_list(arrow):
        items = [value for row in filled for value in row]
        return pa.FixedSizeListArray.from_arrays(
            build(items, arrow.value_type), type=arrow, mask=mask
        )
    return pa.array(values, arrow)


def without_null_words(value: Any, arrow: pa.DataType) -> Any:
    """Return a value whose dictionary-encoded parts are not null: those would need no hiding."""
    if value is None:
        return "a" if pa.types.is_dictionary(arrow) else None
    if pa.types.is_struct(arrow):
        return {array.name: without_null_words(value[array.name], array.type) for array in arrow}
    if pa.types.is_map(arrow):
        return [(key, without_null_words(item, arrow.item_type)) for key, item in value]
    if pa.types.is_list(arrow):
        return [without_null_words(item, arrow.value_type) for item in value]
    return value


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("seed", range(120))
def test_values_behind_nulls_stay_hidden(seed: int, tmp_path: Path) -> None:
    """Values behind nulls are neither cast nor written."""
    case = Case(seed)
    nested = pa.struct([("x", case.incoming)]), pa.struct([("x", case.target)])
    values = [case.value(*nested) for _ in range(9)]
    values = [without_null_words(value, nested[0]) for value in values]
    whole = build([*values[:2], *values, None], nested[0])
    dirty = whole.slice(2, len(values))
    rows = pa.RecordBatch.from_arrays([dirty], ["c"])
    target = pa.schema([("c", nested[1])])
    clean = pa.RecordBatch.from_arrays([pa.array(values, nested[0])], ["c"])

    cast = cast_batch(rows, target)
    cast.validate(full=True)
    assert cast.column(0).to_pylist() == cast_batch(clean, target).column(0).to_pylist()
    assert digest_of(rows) == digest_of(clean) == digest_of(cast)
    for name, schema in (("cast", target), ("as it is", rows.schema)):
        ds = lance_stream.create_dataset(tmp_path / name, schema).append(rows)
        expected = cast.column(0).to_pylist() if name == "cast" else clean.column(0).to_pylist()
        assert ds.to_table()["c"].to_pylist() == expected
        assert lance.dataset(str(tmp_path / name)).to_table()["c"].to_pylist() == expected
        assert ds.digest() == digest_of(clean)
