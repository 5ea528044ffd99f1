"""Nulls among the values of a dictionary are nulls of the rows, wherever rows come in."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError
from lance_stream.write.casting import ForbiddenNullError
from lance_stream.write.dictionary_nulls import holds_dictionaries, move_nulls_to_indices

TEXTS = pa.DictionaryArray.from_arrays(
    pa.array([2, 1, None, 0, 3], pa.int8()), pa.array(["a", None, "b", None])
)
OFFSETS = pa.array([0, 2, 2, 5], pa.int32())
NESTED: dict[str, pa.Array] = {
    "dictionary": TEXTS,
    "ordered": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 1, 0, None], pa.uint64()), pa.array([None, 3.5]), ordered=True
    ),
    "struct": pa.StructArray.from_arrays(
        [TEXTS, pa.array(range(5))],
        names=["s", "n"],
        mask=pa.array([False, True, False, False, False]),
    ),
    "list": pa.ListArray.from_arrays(OFFSETS, TEXTS),
    "large list": pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), TEXTS),
    "vectors": pa.FixedSizeListArray.from_arrays(TEXTS.slice(1), 2),
    "map": pa.MapArray.from_arrays(OFFSETS, pa.array(list("vwxyz")), TEXTS),
    "list of structs": pa.ListArray.from_arrays(
        OFFSETS, pa.StructArray.from_arrays([TEXTS], names=["s"])
    ),
}


def null_values(array: pa.Array) -> int:
    """Count the nulls among the values of all dictionaries."""
    if pa.types.is_dictionary(array.type):
        return int(array.dictionary.null_count)
    if pa.types.is_struct(array.type):
        return sum(null_values(array.field(number)) for number in range(array.type.num_fields))
    return null_values(array.values) if hasattr(array, "values") else 0


@pytest.mark.floors
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("array", NESTED.values(), ids=list(NESTED))
def test_written_dictionaries_have_no_null(array: pa.Array, start: int) -> None:
    """Lance stores nulls in the indices only, so a null among the values must move, at any depth
    and slice.
    """
    sliced = array.slice(start)
    assert null_values(sliced)
    moved = move_nulls_to_indices(sliced)
    moved.validate(full=True)
    assert moved.type == sliced.type
    assert moved.to_pylist() == sliced.to_pylist()
    assert not null_values(moved)


class WordType(pa.ExtensionType):
    """An extension type whose storage is a dictionary."""

    def __init__(self) -> None:
        super().__init__(TEXTS.type, "test.word")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_extensions_of_dictionaries_count() -> None:
    """An extension type says what values mean, and stores them as any other type does."""
    words = pa.ExtensionArray.from_storage(WordType(), TEXTS)
    assert holds_dictionaries(words.type)
    moved = move_nulls_to_indices(words)
    assert moved.type == words.type
    assert moved.storage.to_pylist() == TEXTS.to_pylist()
    assert not null_values(moved.storage)
    assert not holds_dictionaries(pa.uuid())


@pytest.mark.parametrize("array", [pa.array([1, None]), pa.array(["a", "b"]).dictionary_encode()])
def test_other_arrays_are_not_copied(array: pa.Array) -> None:
    """Arrays without such nulls are the rule and must cost nothing."""
    moved = move_nulls_to_indices(array)
    assert moved is array


def batch_of(keys: list[str | None]) -> pa.Table:
    """Return rows whose nulls are in the dictionary."""
    distinct = list(dict.fromkeys(keys))
    indices = pa.array(list(map(distinct.index, keys)), pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(distinct, pa.string()))
    assert not column.null_count
    return pa.table({"id": column, "x": list(range(len(keys)))})


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("column", ["id", "x"])
def test_null_keys_and_sequences_are_refused(tmp_path: Path, kind: Any, column: str) -> None:
    """`null_count` does not see a null in a dictionary, by which a null key could enter."""
    schema = pa.schema([("id", kind if column == "id" else pa.int64()), ("x", kind)])
    ds = lance_stream.create_dataset(tmp_path / "t", schema)
    rows = batch_of(["a", None])
    if column == "x":
        rows = pa.table({"id": [1, 2], "x": rows["id"]})
    else:
        rows = rows.set_column(1, "x", pa.array(["p", "q"]))
    with pytest.raises(InvalidInputError, match=r"1 of 2 rows have no key|1 rows have no 'x'"):
        ds.upsert(rows, "id", sequence_by=None if column == "id" else "x")
    assert lance_stream.open_dataset(tmp_path / "t").version == ds.version


@pytest.mark.oracle
@pytest.mark.parametrize("verb", ["append", "overwrite", "upsert"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_non_nullable_columns_refuse_dictionary_nulls(
    tmp_path: Path, verb: str, version: str
) -> None:
    """Arrow's own count misses these nulls, and Lance would then store them in a non-nullable
    column.
    """
    rows = batch_of(["a", None])
    rows = pa.table({"n": [1, 2], "s": rows["id"]})
    schema = pa.schema([("n", pa.int64()), pa.field("s", rows.schema.field("s").type, False)])
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, schema, file_version=version)
    ds = ds.append(pa.table({"n": [1], "s": batch_of(["a"])["id"]}))
    with pytest.raises(ForbiddenNullError, match="'s' must not be null"):
        ds.upsert(rows, "n") if verb == "upsert" else getattr(ds, verb)(rows)
    assert lance.dataset(uri).to_table().to_pylist() == [{"n": 1, "s": "a"}]


@pytest.mark.oracle
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_pylance_reads_the_moved_nulls(tmp_path: Path, version: str) -> None:
    """Both programs must see the same nulls, in values and in filters."""
    names = ["a", None, "b", None, "a"]
    rows = batch_of(names)
    ds = lance_stream.create_dataset(tmp_path / "t", rows.schema, file_version=version)
    ds = ds.append(rows)
    for actual in (ds.to_table(), lance.dataset(ds.uri).to_table()):
        assert actual["id"].to_pylist() == names
    expected = np.flatnonzero([name is None for name in names]).tolist()
    assert ds.to_table(filter="id IS NULL")["x"].to_pylist() == expected
    assert lance.dataset(ds.uri).to_table(filter="id IS NULL")["x"].to_pylist() == expected
