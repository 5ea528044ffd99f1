"""pylance reads what we encode, each codec of values of fixed width by its name in the file."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.file.encoding_options import PREFIX
from lance_stream.file.metadata.columns import unpack_encoding
from lance_stream.file.versions import FileVersion
from tests.file.column_metadata import columns_of
from tests.file.conftest import Files

pytestmark = pytest.mark.oracle

V2_1, V2_2 = FileVersion.V2_1, FileVersion.V2_2
COUNT = 8100
FILES = Files()


def random_numbers() -> np.random.Generator:
    return np.random.default_rng(7)


def below(width: int, word: str) -> npt.NDArray[np.integer]:
    """Numbers of up to so many bits."""
    numbers = random_numbers().integers(0, 2**width, COUNT, np.uint64).astype(f"u{word[1]}")
    return numbers.view(word)


def wide(word: str) -> npt.NDArray[np.integer]:
    limits = np.iinfo(word)
    return random_numbers().integers(limits.min, limits.max, COUNT, word, endpoint=True)


def in_runs(values: npt.NDArray[np.generic], length: int) -> npt.NDArray[np.generic]:
    return np.repeat(values[: COUNT // length + 1], length)[:COUNT]


def with_nulls(values: npt.NDArray[np.generic]) -> pa.Array:
    return pa.array(values, mask=random_numbers().random(len(values)) < 0.2)


def in_lists(values: pa.Array) -> pa.Array:
    offsets = np.minimum(np.arange(0, len(values) + 6, 3), len(values)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def decimals(values: npt.NDArray[np.integer]) -> pa.Array:
    return pa.array(values.astype(np.int64)).cast(pa.decimal128(20, 0))


CASES: dict[str, tuple[Callable[[], pa.Array], str, FileVersion]] = {
    **{
        f"{width} of {8 * int(word[1])} bits, {version}": (
            lambda width=width, word=word: pa.array(below(width, word)),
            "inline_bitpacking",
            version,
        )
        for word, widths in {
            "u1": (2, 7),
            "u2": (3, 9, 15),
            "i4": (2, 13, 30),
            "i8": (3, 20, 33, 57),
        }.items()
        for width in widths
        for version in (V2_1, V2_2)
    },
    **{
        f"runs of {length}, {word}, {version}": (
            lambda length=length, word=word: pa.array(in_runs(wide(word), length)),
            "rle",
            version,
        )
        for word in ("u1", "i2", "i4", "i8")
        for length in (9, 300)
        for version in (V2_1, V2_2)
    },
    "dates": (lambda: pa.array(below(14, "i4")).cast(pa.date32()), "inline_bitpacking", V2_2),
    "timestamps": (
        lambda: pa.array(below(50, "i8")).cast(pa.timestamp("us", "UTC")),
        "inline_bitpacking",
        V2_2,
    ),
    "floats": (
        lambda: pa.array(random_numbers().random(COUNT, np.float32)),
        "inline_bitpacking",
        V2_2,
    ),
    "halves": (
        lambda: pa.array(random_numbers().random(COUNT, np.float32).astype(np.float16)),
        "inline_bitpacking",
        V2_1,
    ),
    "packed with nulls": (lambda: with_nulls(below(20, "i8")), "inline_bitpacking", V2_2),
    "runs with nulls": (lambda: with_nulls(in_runs(wide("i8"), 100)), "rle", V2_1),
    "one value and nulls": (lambda: with_nulls(np.full(COUNT, -1)), "rle", V2_2),
    "one value in 2.1": (lambda: pa.array(np.full(COUNT, 2.5)), "rle", V2_1),
    "lists of small numbers": (
        lambda: in_lists(pa.array(below(9, "i8"))),
        "inline_bitpacking",
        V2_2,
    ),
    "lists with nulls in 2.1": (
        lambda: in_lists(with_nulls(below(9, "i8"))),
        "inline_bitpacking",
        V2_1,
    ),
    "few of 64 bits": (lambda: pa.array(wide("i8")[below(4, "i8")]), "dictionary", V2_2),
    "few doubles with nulls": (
        lambda: with_nulls(random_numbers().random(50)[below(5, "i8")]),
        "dictionary",
        V2_2,
    ),
    "few of 64 bits in 2.1": (lambda: pa.array(wide("i8")[below(4, "i8")]), "flat", V2_1),
    "few of 128 bits": (lambda: decimals(below(4, "i8")), "dictionary", V2_1),
    "few of 128 bits with nulls": (
        lambda: decimals(below(4, "i8")).filter(with_nulls(below(4, "i8")).is_valid()),
        "dictionary",
        V2_2,
    ),
    "many of 64 bits": (lambda: pa.array(wide("i8")), "flat", V2_2),
}


def codec_of(page: bytes) -> str:
    """The name of a page's codec, or that it has a dictionary."""
    message = unpack_encoding(page, pb.PageLayout)
    layout = getattr(message, message.WhichOneof("layout"))
    if message.HasField("mini_block_layout") and layout.HasField("dictionary"):
        return "dictionary"
    name: str = layout.value_compression.WhichOneof("compression")
    return name


@pytest.mark.parametrize("case", CASES)
def test_pylance_reads_each_codec(tmp_path: Path, case: str) -> None:
    """Some codecs are chosen rarely, so each one is forced and named."""
    make, codec, version = CASES[case]
    table = pa.table({"x": make()})
    data, _ = FILES.write(table, version)
    opened = FILES.open(data)
    (column,) = columns_of(opened.reader, [0], opened.read_ranges)
    assert [codec_of(page.encoding) for page in column.pages] == [codec]
    assert opened.read(0, table.num_rows)[0].equals(table["x"].combine_chunks())
    (tmp_path / "x.lance").write_bytes(data)
    theirs = LanceFileReader(str(tmp_path / "x.lance"))
    assert theirs.read_all().to_table()["x"].combine_chunks().equals(table["x"].combine_chunks())
    some = [0, 17, 1023, 1024, min(8099, table.num_rows - 1)]
    expected = table["x"].take(some).combine_chunks()
    assert theirs.take_rows(some).to_table()["x"].combine_chunks().equals(expected)
    assert opened.take(some)[0].equals(expected)


@pytest.mark.parametrize("version", [V2_1, V2_2], ids=str)
@pytest.mark.parametrize(
    "metadata",
    [
        {"compression": "zstd"},
        {"compression": "lz4", "bss": "on"},
        {"compression": "zstd", "bss": "auto", "compression-level": "5"},
        {"compression": "none"},
        {"rle-threshold": "0.9"},
        {"structural-encoding": "fullzip"},
        {"structural-encoding": "miniblock"},
    ],
    ids=str,
)
def test_pylance_files_with_codecs_are_read(
    tmp_path: Path, metadata: dict[str, str], version: FileVersion
) -> None:
    """A column's metadata makes pylance choose codecs that it does not use by default."""
    keys = {PREFIX + key: value for key, value in metadata.items()}
    columns = {
        "double": pa.array(np.round(random_numbers().random(COUNT), 2)),
        "runs": with_nulls(in_runs(wide("i4"), 20)),
        "small": pa.array(below(9, "i8")),
        "lists": pa.ListArray.from_arrays(
            pa.array(np.arange(COUNT + 1) // 2 * 2, pa.int32()), pa.array(below(9, "i4"))
        ),
    }
    fields = [pa.field(name, column.type, metadata=keys) for name, column in columns.items()]
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    path = str(tmp_path / "theirs.lance")
    with LanceFileWriter(path, table.schema, version=str(version)) as writer:
        writer.write_batch(table)
    opened = FILES.open(Path(path).read_bytes())
    for name, array in zip(columns, opened.read(0, COUNT), strict=True):
        assert array.equals(columns[name]), name


def offsets_with(*, empty: float, count: int = COUNT) -> npt.NDArray[np.int32]:
    """Offsets of lists of up to five items, a part of them empty."""
    lengths = random_numbers().integers(1, 5, count)
    lengths[random_numbers().random(count) < empty] = 0
    return np.append(0, np.cumsum(lengths)).astype(np.int32)


def lists_of(empty: float, null: float = 0.0) -> pa.Array:
    offsets = offsets_with(empty=empty)
    numbers = pa.array(random_numbers().integers(0, 50, int(offsets[-1])))
    mask = pa.array(random_numbers().random(COUNT) < null) if null else None
    return pa.ListArray.from_arrays(pa.array(offsets), numbers, mask=mask)


def structs_of(values: pa.Array, null: float) -> pa.Array:
    mask = pa.array(random_numbers().random(len(values)) < null)
    return pa.StructArray.from_arrays([values], ["y"], mask=mask)


LEVELS: dict[str, Callable[[], pa.Array]] = {
    "rare nulls": lambda: pa.array(wide("i8"), mask=np.arange(COUNT) % 997 == 3),
    "half nulls": lambda: pa.array(wide("i8"), mask=random_numbers().random(COUNT) < 0.5),
    "stretches of nulls": lambda: pa.array(wide("i8"), mask=np.arange(COUNT) // 600 % 2 == 1),
    "lists, few empty": lambda: lists_of(0.001),
    "lists, empty and null": lambda: lists_of(0.3, 0.2),
    "lists of nothing": lambda: lists_of(1.0, 0.5),
    "null lists": lambda: pa.nulls(COUNT, pa.list_(pa.int64())),
    "structs that are null": lambda: structs_of(pa.array(below(9, "i8")), 0.4),
    "structs of nulls": lambda: structs_of(pa.nulls(COUNT, pa.int64()), 0.4),
    "null structs": lambda: structs_of(pa.array(below(9, "i8")), 1.1),
    "one value in null structs": lambda: structs_of(pa.array(np.full(COUNT, 3)), 0.2),
    "dictionary of strings": lambda: pa.DictionaryArray.from_arrays(
        with_nulls(below(3, "i4") % 5), pa.array(["a", "b", "c", "d", "e" * 40])
    ),
    "dictionary of numbers": lambda: pa.DictionaryArray.from_arrays(
        pa.array(in_runs(below(6, "i4"), 40)), pa.array(np.arange(64, dtype=np.int64))
    ),
}


@pytest.mark.parametrize("version", [V2_1, V2_2], ids=str)
@pytest.mark.parametrize("case", LEVELS)
def test_pylance_reads_levels_and_indices(tmp_path: Path, case: str, version: FileVersion) -> None:
    """Levels and dictionary indices are encoded like values, in blocks of their own."""
    table = pa.table({"x": LEVELS[case]()})
    data, _ = FILES.write(table, version)
    opened = FILES.open(data)
    whole = table["x"].combine_chunks()
    assert opened.read(0, COUNT)[0].equals(whole)
    (tmp_path / "x.lance").write_bytes(data)
    theirs = LanceFileReader(str(tmp_path / "x.lance"))
    read = theirs.read_all().to_table()["x"].combine_chunks()
    assert read.to_pylist() == whole.to_pylist()
    some = [0, 17, 1023, 1024, 1025, 4095, 8099]
    assert theirs.take_rows(some).to_table()["x"].to_pylist() == whole.take(some).to_pylist()
    assert opened.take(some)[0].to_pylist() == whole.take(some).to_pylist()


VALUES: list[pa.Scalar] = [
    pa.scalar(True),
    pa.scalar(1, pa.int8()),
    pa.scalar(2, pa.uint16()),
    pa.scalar(-3, pa.int32()),
    pa.scalar(2**63, pa.uint64()),
    pa.scalar(np.float16(1.5), pa.float16()),
    pa.scalar(-0.0, pa.float64()),
    pa.scalar(Decimal("1.5"), pa.decimal128(10, 2)),
    pa.scalar(Decimal("1.5"), pa.decimal256(40, 2)),
    pa.scalar(5, pa.date32()),
    pa.scalar(5, pa.time32("s")),
    pa.scalar(5, pa.time64("ns")),
    pa.scalar(5, pa.timestamp("us", "UTC")),
    pa.scalar(5, pa.duration("ms")),
    pa.scalar("abc"),
    pa.scalar("x" * 100),
    pa.scalar(""),
    pa.scalar("abc", pa.large_string()),
    pa.scalar(b"x" * 50, pa.large_binary()),
    pa.scalar(b"12345", pa.binary(5)),
    pa.scalar(b"1" * 40, pa.binary(40)),
    pa.scalar([1.0, 2.0], pa.list_(pa.float32(), 2)),
    pa.scalar([1, None], pa.list_(pa.int8(), 2)),
    pa.scalar([True, False], pa.list_(pa.bool_(), 2)),
]


def repeated(value: pa.Scalar, count: int) -> pa.Array:
    return pa.concat_arrays([pa.array([value.as_py()], value.type)] * count)


def shapes_of(value: pa.Scalar) -> dict[str, pa.Array]:
    """One value in all shapes that 100 rows can have."""
    plain = repeated(value, 100)
    nullable = pa.concat_arrays(
        [repeated(value, 40), pa.nulls(20, value.type), repeated(value, 40)]
    )
    offsets = pa.array([*range(0, 80, 2), *[80] * 60, 100], pa.int32())
    mask = pa.array(np.arange(100) % 3 == 0)
    return {
        "plain": plain,
        "nullable": nullable,
        "list": pa.ListArray.from_arrays(offsets, plain),
        "list of nullable": pa.ListArray.from_arrays(offsets, nullable, mask=mask),
        "struct": pa.StructArray.from_arrays([nullable], ["y"], mask=mask),
    }


@pytest.mark.parametrize("version", [V2_1, V2_2], ids=str)
def test_single_values_of_all_types_agree(tmp_path: Path, version: FileVersion) -> None:
    """A page of one value is stored as a constant, in the metadata of the file."""
    columns = {
        f"{number} {shape}": array
        for number, value in enumerate(VALUES)
        for shape, array in shapes_of(value).items()
    }
    table = pa.table(columns)
    path = str(tmp_path / "theirs.lance")
    with LanceFileWriter(path, table.schema, version=str(version)) as writer:
        writer.write_batch(table)
    opened = FILES.open(Path(path).read_bytes())
    for name, array in zip(columns, opened.read(0, 100), strict=True):
        assert array.to_pylist() == columns[name].to_pylist(), name
    data, _ = FILES.write(table, version)
    (tmp_path / "ours.lance").write_bytes(data)
    theirs = LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table()
    for name in columns:
        assert theirs[name].to_pylist() == columns[name].to_pylist(), name
