"""Tables with structs that are one column: what pylance writes we read, and the other way round."""

from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError

pytestmark = pytest.mark.oracle

PACKED = {b"lance-encoding:packed": b"true"}
NUM_ROWS = 3000

Structs = Callable[[np.random.Generator, float], pa.Array]


def structs(parts: dict[str, pa.Array], random: np.random.Generator, nulls: float) -> pa.Array:
    mask = pa.array(random.random(NUM_ROWS) < nulls)
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts), mask=mask)


def numbers(random: np.random.Generator, nulls: float) -> pa.Array:
    ids = pa.array(random.integers(0, 2**62, NUM_ROWS))
    return structs(
        {"a": ids.cast(pa.int64()), "b": pc.bit_wise_and(ids, 7).cast(pa.int8())}, random, nulls
    )


def wide_and_narrow(random: np.random.Generator, nulls: float) -> pa.Array:
    blocks = pa.array([random.bytes(37) for _ in range(NUM_ROWS)], pa.binary(37))
    moments = pa.array(np.arange(NUM_ROWS)).cast(pa.timestamp("us", "UTC"))
    return structs({"a": blocks, "b": moments}, random, nulls)


def texts(random: np.random.Generator, nulls: float) -> pa.Array:
    texts = pa.array([f"{value:x}" * (value % 5) for value in random.integers(0, 99, NUM_ROWS)])
    blocks = pa.array([random.bytes(value % 9) for value in range(NUM_ROWS)], pa.large_binary())
    return structs({"a": pa.array(np.arange(NUM_ROWS)), "b": texts, "c": blocks}, random, nulls)


def long_texts(random: np.random.Generator, nulls: float) -> pa.Array:
    texts = pa.array(["the quick brown fox " * (value % 90) for value in range(NUM_ROWS)])
    return structs({"a": texts, "b": pa.array(np.arange(NUM_ROWS))}, random, nulls)


def vectors(random: np.random.Generator, nulls: float) -> pa.Array:
    items = pa.array(random.standard_normal(2 * NUM_ROWS).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(items, 2)
    return structs({"a": vectors, "b": pa.array(np.arange(NUM_ROWS))}, random, nulls)


CASES = [
    pytest.param(version, kind, id=f"{version}-{kind.__name__}")
    for version in ("2.0", "2.1", "2.2")
    for kind in (numbers, wide_and_narrow, texts, long_texts, vectors)
    if version == "2.2"
    or kind in (numbers, wide_and_narrow)
    or (version == "2.0" and kind == vectors)
]


def table_of(column: pa.Array) -> pa.Table:
    field = pa.field("s", column.type, metadata=PACKED)
    schema = pa.schema([pa.field("id", pa.int64()), field])
    return pa.table([pa.array(np.arange(len(column))), column], schema=schema)


def lists_of(items: pa.Array, random: np.random.Generator) -> pa.Array:
    """Return lists of packed structs, some of them null or empty."""
    lengths = random.integers(0, 4, len(items))
    lengths = lengths[np.cumsum(lengths) <= len(items)]
    offsets = np.append(0, np.cumsum(lengths))
    mask = pa.array(lengths == 3)
    field = pa.field("item", items.type, metadata=PACKED)
    plain = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items[: int(offsets[-1])])
    bitmap = pc.invert(mask).buffers()[1]
    return pa.Array.from_buffers(
        pa.list_(field), len(plain), [bitmap, plain.buffers()[1]], children=[plain.values]
    )


@pytest.mark.parametrize("nulls", [0, 0.3, 1])
@pytest.mark.parametrize(("version", "kind"), CASES)
def test_packed_structs_of_pylance_read_alike(
    tmp_path: Path, version: str, kind: Structs, nulls: float
) -> None:
    """All fields lie in one column, also for reads of a single field."""
    random = np.random.default_rng(1)
    table = table_of(kind(random, nulls if version != "2.0" else 0))
    lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    ours = lance_stream.open_dataset(tmp_path / "t")
    assert ours.to_table().equals(table)
    rows = sorted(random.choice(NUM_ROWS, 7, replace=False).tolist())
    assert ours.take(rows).equals(table.take(rows))
    part = ours.to_table(columns=["s.b"])["s"].combine_chunks()
    assert part.to_pylist() == [
        None if value is None else {"b": value["b"]} for value in table["s"].to_pylist()
    ]


@pytest.mark.parametrize("nulls", [0, 0.3, 1])
@pytest.mark.parametrize(("version", "kind"), CASES)
def test_pylance_reads_our_packed_structs(
    tmp_path: Path, version: str, kind: Structs, nulls: float
) -> None:
    """The order and widths of fields in a value must be pylance's."""
    random = np.random.default_rng(2)
    table = table_of(kind(random, nulls if version != "2.0" else 0))
    ours = lance_stream.create_dataset(tmp_path / "t", table.schema, version).append(table)
    theirs = lance.dataset(tmp_path / "t")
    assert theirs.to_table().equals(table)
    assert ours.to_table().equals(table)
    rows = sorted(random.choice(NUM_ROWS, 7, replace=False).tolist())
    assert theirs.take(rows).equals(table.take(rows))
    (fragment,) = theirs.get_fragments()
    assert fragment.data_files()[0].fields == [0, 1]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("version", "kind"), CASES)
@pytest.mark.parametrize("writer", ["pylance", "ours"])
def test_packed_structs_in_lists_read_alike(
    tmp_path: Path, version: str, kind: Structs, writer: str
) -> None:
    """Levels of lists apply to whole packed values."""
    random = np.random.default_rng(3)
    lists = lists_of(kind(random, 0.2 if version != "2.0" else 0), random)
    table = pa.table({"l": lists})
    if writer == "ours":
        lance_stream.create_dataset(tmp_path / "t", table.schema, version).append(table)
    else:
        lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    assert lance.dataset(tmp_path / "t").to_table()["l"].to_pylist() == lists.to_pylist()
    ours = lance_stream.open_dataset(tmp_path / "t")
    assert ours.to_table()["l"].to_pylist() == lists.to_pylist()
    part = ours.to_table(columns=["l.b"])["l"].to_pylist()
    assert part == [
        value and [item and {"b": item["b"]} for item in value] for value in lists.to_pylist()
    ]


def test_the_older_key_packs_too(tmp_path: Path) -> None:
    """Old writers used the key without its prefix."""
    column = numbers(np.random.default_rng(4), 0.1)
    table = pa.table(
        [column], schema=pa.schema([pa.field("s", column.type, metadata={"packed": "TRUE"})])
    )
    lance.write_dataset(table, tmp_path / "t", data_storage_version="2.1")
    assert lance.dataset(tmp_path / "t").get_fragments()[0].data_files()[0].fields == [0]
    assert lance_stream.open_dataset(tmp_path / "t").to_table().equals(table)
    lance_stream.create_dataset(tmp_path / "ours", table.schema, "2.1").append(table)
    assert lance.dataset(tmp_path / "ours").to_table().equals(table)


def test_pylance_reads_structs_wider_than_chunks(tmp_path: Path) -> None:
    """Such values must be written in full-zip pages."""
    blocks = pa.array([bytes([number]) * 10_000 for number in range(20)], pa.binary(10_000))
    column = pa.StructArray.from_arrays([pa.array(range(20)), blocks], names=["a", "b"])
    table = table_of(column)
    lance_stream.create_dataset(tmp_path / "t", table.schema, "2.2").append(table)
    assert lance.dataset(tmp_path / "t").to_table().equals(table)


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("2.0", {"a": pa.array(["x"])}),
        ("2.1", {"a": pa.array(["x"])}),
        ("2.2", {"a": pa.array([True])}),
        ("2.2", {"a": pa.array([1]), "b": pa.array([None], pa.int8())}),
    ],
    ids=["text-2.0", "text-2.1", "bool", "null-part"],
)
def test_unpackable_structs_are_refused_before_commit(
    tmp_path: Path, version: str, parts: dict[str, pa.Array]
) -> None:
    """A committed file that nobody can read would break the table."""
    column = pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
    table = table_of(column)
    ours = lance_stream.create_dataset(tmp_path / "t", table.schema, version)
    with pytest.raises(InvalidInputError, match="packed"):
        ours.append(table)
    assert [version.version for version in ours.versions()] == [1]
    assert not list((tmp_path / "t").glob("data/*.lance"))


def test_unreadable_packed_booleans_are_refused(tmp_path: Path) -> None:
    """pylance writes them, but cannot read them back, and guessing would give wrong values."""
    column = pa.StructArray.from_arrays([pa.array([True, False])], names=["a"])
    lance.write_dataset(table_of(column), tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(pa.ArrowInvalid, match="widths"):
        lance.dataset(tmp_path / "t").to_table()
    with pytest.raises(UnsupportedFeatureError, match="packed structs"):
        lance_stream.open_dataset(tmp_path / "t").to_table()
