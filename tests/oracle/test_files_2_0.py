"""Bare data files of version 2.0: what pylance writes we read, what we write pylance reads."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter

from lance_stream.byte_ranges import answer, read_from
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.file.reader import FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids

pytestmark = pytest.mark.oracle

Random = np.random.Generator


def bits_of(random: Random, num_values: int, arrow: pa.DataType) -> pa.Array:
    """Any bits at all, for types that give a meaning to all of them."""
    data = random.bytes(num_values * arrow.bit_width // 8)
    return pa.Array.from_buffers(arrow, num_values, [None, pa.py_buffer(data)])


def small_numbers(random: Random, num_values: int, arrow: pa.DataType) -> pa.Array:
    return pa.array(random.integers(0, 80_000, num_values)).cast(pa.int32()).cast(arrow)


def texts(random: Random, num_values: int, num_different: int, max_length: int) -> pa.Array:
    num_different = min(num_different, 2 * num_values + 1)
    letters = np.array(list("abcdefgh ü€𝄞"))
    lengths = random.integers(0, max_length + 1, num_different)
    different = ["".join(random.choice(letters, length)) for length in lengths]
    return pa.array(different, pa.string()).take(
        pa.array(random.integers(0, num_different, num_values))
    )


def lists_of(random: Random, num_lists: int, items: Callable[[int], pa.Array]) -> pa.Array:
    lengths = random.integers(0, 5, num_lists) * (random.random(num_lists) < 0.7)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items(int(offsets[-1])))


def with_nulls(random: Random, array: pa.Array, rate: float) -> pa.Array:
    if rate == 0:
        return array
    if rate == 1:
        return pa.nulls(len(array), array.type)
    is_valid = random.random(len(array)) >= rate
    indices = pa.array(np.arange(len(array)), mask=~is_valid)
    return array.take(indices)


def columns(num_rows: int, null_rate: float, seed: int = 0) -> pa.Table:
    """A column of every type, nulls at a rate on every level where they may be."""
    random = np.random.default_rng(seed)

    def nulled(array: pa.Array) -> pa.Array:
        return with_nulls(random, array, null_rate)

    plain: dict[str, pa.Array] = {}
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    integers += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    for arrow in integers:
        plain[str(arrow)] = bits_of(random, num_rows, arrow)
    for arrow in (pa.float16(), pa.float32(), pa.float64()):
        plain[str(arrow)] = pa.array(
            random.standard_normal(num_rows).astype(arrow.to_pandas_dtype())
        )
    for arrow in (pa.date32(), pa.time32("s"), pa.time32("ms")):
        plain[str(arrow)] = small_numbers(random, num_rows, arrow)
    for unit in ("s", "ms", "us", "ns"):
        for arrow in (pa.timestamp(unit), pa.timestamp(unit, "Asia/Kolkata"), pa.duration(unit)):
            plain[str(arrow)] = bits_of(random, num_rows, pa.int64()).view(arrow)
    for arrow in (pa.date64(), pa.time64("us"), pa.time64("ns")):
        days = pa.array(random.integers(0, 1000, num_rows) * (86_400_000 if arrow.id == 17 else 1))
        plain[str(arrow)] = days.view(arrow)
    plain["bool"] = pa.array(random.random(num_rows) < 0.5)
    plain["decimal128"] = pa.array(random.integers(-(10**9), 10**9, num_rows)).cast(
        pa.decimal128(38, 10)
    )
    plain["decimal256"] = plain["decimal128"].cast(pa.decimal256(60, 10))
    plain["binary(1)"] = bits_of(random, num_rows, pa.binary(1))
    plain["binary(11)"] = bits_of(random, num_rows, pa.binary(11))
    plain["string"] = texts(random, num_rows, 5000, 30)
    plain["few strings"] = texts(random, num_rows, 20, 30)
    plain["large_string"] = texts(random, num_rows, 5000, 30).cast(pa.large_string())
    plain["binary"] = texts(random, num_rows, 5000, 300).cast(pa.binary())
    plain["large_binary"] = texts(random, num_rows, 50, 30).cast(pa.large_binary())
    plain["null"] = pa.nulls(num_rows)
    for width in (1, 3, 16):
        items = nulled(pa.array(random.standard_normal(num_rows * width).astype(np.float32)))
        plain[f"vector({width})"] = pa.FixedSizeListArray.from_arrays(items, width)
    flags = nulled(pa.array(random.random(num_rows * 3) < 0.5))
    plain["flags"] = pa.FixedSizeListArray.from_arrays(flags, 3)
    for index in (pa.int8(), pa.uint16(), pa.int32(), pa.int64()):
        some = texts(random, num_rows, 100, 9)
        plain[f"dictionary({index})"] = some.dictionary_encode().cast(
            pa.dictionary(index, pa.string())
        )
    plain["dictionary of numbers"] = pa.array(random.integers(0, 50, num_rows)).dictionary_encode()
    arrays = {name: nulled(array) for name, array in plain.items()}

    def numbers(num_items: int) -> pa.Array:
        return nulled(pa.array(random.integers(0, 100, num_items), pa.int32()))

    def words(num_items: int) -> pa.Array:
        return nulled(texts(random, num_items, 500, 9))

    def structs(num_items: int) -> pa.Array:
        parts = [numbers(num_items), words(num_items), nested(num_items)]
        return pa.StructArray.from_arrays(parts, ["a", "b", "c"])

    def nested(num_items: int) -> pa.Array:
        return nulled(lists_of(random, num_items, numbers))

    arrays["list"] = nested(num_rows)
    arrays["large_list"] = nested(num_rows).cast(pa.large_list(pa.int32()))
    arrays["list of words"] = nulled(lists_of(random, num_rows, words))
    arrays["list of lists"] = nulled(lists_of(random, num_rows, nested))
    arrays["list of structs"] = nulled(lists_of(random, num_rows, structs))
    arrays["list of flags"] = nulled(
        lists_of(random, num_rows, lambda count: nulled(pa.array(random.random(count) < 0.5)))
    )
    arrays["list of codes"] = nulled(
        lists_of(random, num_rows, lambda count: texts(random, count, 9, 3).dictionary_encode())
    )
    arrays["empty lists"] = nulled(pa.array([[]] * num_rows, pa.list_(pa.int8())))
    arrays["struct"] = structs(num_rows)
    inner = pa.StructArray.from_arrays([structs(num_rows)], ["inner"])
    arrays["struct of structs"] = inner
    return pa.table(arrays)


def plain(array: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array without dictionaries, which both programs may fill as they like."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks else pa.array([], array.type)
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
    return array.cast(_without_dictionaries(array.type))


def _without_dictionaries(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(arrow):
        return arrow.value_type
    if pa.types.is_list(arrow):
        return pa.list_(_without_dictionaries(arrow.value_type))
    return arrow


def write_by_pylance(table: pa.Table, path: Path) -> bytes:
    with LanceFileWriter(str(path), table.schema, version="2.0") as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    return path.read_bytes()


def write_by_us(table: pa.Table, path: Path, max_page_bytes: int = 8 << 20) -> None:
    schema = assign_ids(from_arrow(table.schema))
    writer = FileWriter(schema, FileVersion.V2_0, max_page_bytes=max_page_bytes)
    with path.open("wb") as file:
        for batch in table.to_batches():
            file.writelines(writer.write(batch))
        rest, _ = writer.finish()
        file.writelines(rest)


class Reading:
    """Our reading of a file, column by column, whole, in part and row by row."""

    def __init__(self, data: bytes) -> None:
        self._ranges = read_from(data)
        self.reader: FileReader = answer(open_file(len(data)), self._ranges)
        fields = self.reader.metadata.schema
        self.column_of = {field.id: column for column, field in enumerate(fields.walk())}
        self.num_rows = self.reader.metadata.num_rows

    def read(self, start: int, stop: int) -> list[pa.Array]:
        fields = self.reader.metadata.schema.fields
        return answer(self.reader.read(fields, self.column_of, start, stop), self._ranges)

    def take(self, offsets: Iterable[int]) -> list[pa.Array]:
        fields, row_offsets = self.reader.metadata.schema.fields, np.array(list(offsets), np.uint64)
        return answer(self.reader.take(fields, self.column_of, row_offsets), self._ranges)


def assert_reads_as(reading: Reading, table: pa.Table) -> None:
    assert reading.num_rows == table.num_rows
    middle = table.num_rows // 3
    for start, stop in [(0, table.num_rows), (middle, 2 * middle + 1), (middle, middle)]:
        stop = min(stop, table.num_rows)
        for name, array in zip(table.column_names, reading.read(start, stop), strict=True):
            array.validate(full=True)
            assert array.type == table[name].type, name
            assert plain(array).equals(plain(table[name][start:stop])), (name, start, stop)
    for offsets in (range(0, table.num_rows, 3), range(1, table.num_rows, 977), []):
        for name, array in zip(table.column_names, reading.take(offsets), strict=True):
            array.validate(full=True)
            expected = table[name].take(pa.array(list(offsets), pa.int64()))
            assert plain(array).equals(plain(expected)), (name, offsets)


@pytest.mark.parametrize(
    ("num_rows", "null_rate"),
    [(1, 0), (1, 1), (7, 0.5), (2000, 0), (2000, 0.02), (2000, 0.5), (2000, 1)],
)
def test_pylances_files_read_the_same(tmp_path: Path, num_rows: int, null_rate: float) -> None:
    """Round trips cannot notice a mistake that encoder and decoder share."""
    table = columns(num_rows, null_rate)
    data = write_by_pylance(table, tmp_path / "theirs.lance")
    assert_reads_as(Reading(data), table)


@pytest.mark.parametrize(
    ("num_rows", "null_rate"),
    [(1, 0), (1, 1), (7, 0.5), (2000, 0), (2000, 0.02), (2000, 0.5), (2000, 1)],
)
def test_pylance_reads_our_files(tmp_path: Path, num_rows: int, null_rate: float) -> None:
    """Types and values must survive, with and without nulls."""
    table = columns(num_rows, null_rate)
    write_by_us(table, tmp_path / "ours.lance")
    theirs = LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table()
    for name in table.column_names:
        assert theirs[name].type == table[name].type, name
        assert plain(theirs[name]).equals(plain(table[name])), name


@pytest.mark.parametrize("max_page_bytes", [1, 3000, 8 << 20])
def test_pylance_reads_sliced_batches_and_pages(tmp_path: Path, max_page_bytes: int) -> None:
    """Slices have offsets in their buffers, and pages cut across batches."""
    whole = columns(140, 0.3)
    slices = [
        batch
        for start, stop in pairwise([0, 1, 1, 9, 17, 100, 131, 137])
        for batch in whole.slice(start, stop - start).to_batches()
    ]
    table = pa.Table.from_batches(slices, whole.schema)
    write_by_us(table, tmp_path / "ours.lance", max_page_bytes)
    assert_reads_as(Reading((tmp_path / "ours.lance").read_bytes()), table)
    theirs = LanceFileReader(str(tmp_path / "ours.lance"))
    for name, column in zip(table.column_names, theirs.read_all().to_table(), strict=True):
        assert plain(column).equals(plain(table[name])), name
    some = theirs.take_rows([0, 5, 100, 136]).to_table()
    for name, column in zip(table.column_names, some, strict=True):
        assert plain(column).equals(plain(table[name].take([0, 5, 100, 136]))), name


@pytest.mark.nightly
@pytest.mark.slow
def test_a_million_rows_read_alike(tmp_path: Path) -> None:
    """Only large columns have several pages of the usual size."""
    random = np.random.default_rng(5)
    count = 1_000_000
    numbers = with_nulls(random, pa.array(random.integers(0, 2**60, count)), 0.1)
    names = with_nulls(random, texts(random, 20_000, 20_000, 12), 0.1).take(
        pa.array(random.integers(0, 20_000, count))
    )
    table = pa.table(
        {
            "number": numbers,
            "name": names,
            "list": lists_of(random, count, lambda items: pa.array(random.random(items))),
            "names": lists_of(
                random, count, lambda items: names.take(pa.array(np.arange(items) % count))
            ),
        }
    )
    data = write_by_pylance(table, tmp_path / "theirs.lance")
    assert_reads_as(Reading(data), table)


def test_both_read_files_without_rows(tmp_path: Path) -> None:
    """A column without pages must still have its type."""
    table = columns(3, 0.0).slice(0, 0)
    write_by_us(table, tmp_path / "ours.lance")
    assert_reads_as(Reading((tmp_path / "ours.lance").read_bytes()), table)
    assert LanceFileReader(str(tmp_path / "ours.lance")).num_rows() == 0


def test_nans_and_signed_zeros_keep_bits(tmp_path: Path) -> None:
    """A conversion on the way would change them unnoticed, as NaN equals nothing."""
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 1 << 63, 0], np.uint64)
    table = pa.table({"x": pa.array(bits.view(np.float64))})
    write_by_us(table, tmp_path / "ours.lance")
    theirs = LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table()
    assert theirs["x"].combine_chunks().view(pa.uint64()).to_pylist() == bits.tolist()
    data = write_by_pylance(table, tmp_path / "theirs.lance")
    (ours,) = Reading(data).read(0, 4)
    assert ours.view(pa.uint64()).to_pylist() == bits.tolist()


@pytest.mark.parametrize("compression", ["zstd", "lz4", "fsst", "none"])
def test_pylances_optional_encodings_are_read(tmp_path: Path, compression: str) -> None:
    """A column's metadata can ask pylance for compression."""
    metadata = {"lance-encoding:compression": compression}
    schema = pa.schema([pa.field("text", pa.string(), metadata=metadata)])
    words = [None if n % 7 == 0 else f"text number {n}" for n in range(5000)]
    table = pa.table([words], schema=schema)
    data = write_by_pylance(table, tmp_path / "theirs.lance")
    assert_reads_as(Reading(data), table)


def test_the_unstable_file_version_is_refused(tmp_path: Path) -> None:
    """Its files may change their meaning with any release of Lance."""
    import lance

    dataset = lance.write_dataset(
        pa.table({"a": [1]}), str(tmp_path / "table"), data_storage_version="2.3"
    )
    (fragment,) = dataset.get_fragments()
    (file,) = fragment.data_files()
    data = (tmp_path / "table" / "data" / file.path).read_bytes()
    with pytest.raises(UnsupportedFeatureError, match=r"2\.3"):
        answer(open_file(len(data)), read_from(data))
