"""Bare data files of versions 2.1 and 2.2: what pylance writes we read, and the other way round.

The shapes are those that make the reference choose another layout or codec: full and small
ranges, few distinct values, runs, one value, random doubles, short, long and huge strings; bare
and inside of lists and structs; with no nulls, some, and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.file import LanceFileReader, LanceFileWriter
from lance.fragment import DataFile, FragmentMetadata

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import answer, read_from
from lance_stream.file.metadata.columns import unpack_encoding
from lance_stream.file.reader import FileReader, open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter, WrittenFile
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from tests.file.column_metadata import columns_of
from tests.oracle.exact import part_of_null
from tests.sampling import some_of

pytestmark = pytest.mark.oracle

Random = np.random.Generator
Shape = Callable[[int, Random], pa.Array]

VERSIONS = [FileVersion.V2_1, FileVersion.V2_2]
NULL_RATES = [0, 0.01, 0.5, 0.99, 1]


def words(count: int, random: Random, *, arrow_type: pa.DataType, kind: str) -> pa.Array:
    dtype = np.dtype(arrow_type.to_pandas_dtype())
    if dtype.kind == "f":
        values = random.standard_normal(count).astype(dtype)
        return pa.array(np.round(values, 1) if kind == "few" else values, arrow_type)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if kind == "full":
        values = random.integers(low, high, count, dtype, endpoint=True)
    elif kind == "small":
        values = random.integers(0, 100, count).astype(dtype)
    elif kind == "few":
        values = random.choice(random.integers(low, high, 7, dtype), count)
    elif kind == "runs":
        values = np.repeat(random.integers(0, 100, count // 50 + 1), 50)[:count].astype(dtype)
    else:
        values = np.full(count, 42, dtype)
    return pa.array(values, arrow_type)


def times(count: int, random: Random, *, arrow_type: pa.DataType) -> pa.Array:
    if arrow_type.bit_width == 32:
        return pa.array(random.integers(0, 80_000, count).astype(np.int32)).cast(arrow_type)
    day = 86_400_000 if pa.types.is_date64(arrow_type) else 1
    return pa.array(random.integers(0, 20_000, count) * day).cast(arrow_type)


def strings(count: int, random: Random, *, arrow_type: pa.DataType, kind: str) -> pa.Array:
    if kind == "unique":
        values = [f"{value:012x}" for value in random.integers(0, 2**48, count)]
    elif kind == "few":
        values = [["alpha", "beta", "", "ünï"][index] for index in random.integers(0, 4, count)]
    elif kind == "one":
        values = ["hello " * 9] * count
    else:
        some = ["the", "quick", "brown", "fox", "jümps"]
        lengths = random.integers(0, 9, count)
        values = [" ".join(random.choice(some, length)) for length in lengths]
    if count and kind in {"long", "huge"}:
        values[count // 2] = "".join(
            random.choice(list("abcdefgh"), 300 if kind == "long" else 40_000)
        )
    return pa.array(values).cast(arrow_type)


def vectors(count: int, random: Random, *, size: int, item: pa.DataType, nulls: bool) -> pa.Array:
    if pa.types.is_boolean(item):
        items = pa.array(random.random(count * size) < 0.5)
    else:
        items = pa.array(random.standard_normal(count * size).astype(np.float32)).cast(item)
    return pa.FixedSizeListArray.from_arrays(
        with_nulls(items, 0.2, random) if nulls else items, size
    )


def codes(count: int, random: Random, *, index: pa.DataType, items: pa.Array) -> pa.Array:
    indices = random.integers(0, len(items), count).astype(index.to_pandas_dtype())
    return pa.DictionaryArray.from_arrays(pa.array(indices, index), items)


def shapes() -> dict[str, Shape]:
    by_name: dict[str, Shape] = {}
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    integers += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    for arrow_type in integers:
        for kind in ("full", "small", "few", "runs", "one"):
            by_name[f"{kind} {arrow_type}"] = partial(words, arrow_type=arrow_type, kind=kind)
    for arrow_type in (pa.float16(), pa.float32(), pa.float64()):
        for kind in ("full", "few"):
            by_name[f"{kind} {arrow_type}"] = partial(words, arrow_type=arrow_type, kind=kind)
    instants = [pa.timestamp("s"), pa.timestamp("us", "Asia/Kolkata"), pa.timestamp("ns", "UTC")]
    dates = [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms")]
    for arrow_type in (*dates, *instants, pa.time64("us"), pa.time64("ns"), pa.duration("ns")):
        by_name[str(arrow_type)] = partial(times, arrow_type=arrow_type)
    for arrow_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        for kind in ("unique", "few", "one", "text", "long", "huge"):
            by_name[f"{kind} {arrow_type}"] = partial(strings, arrow_type=arrow_type, kind=kind)
    for size, item in [
        (4, pa.float32()),
        (63, pa.float32()),
        (64, pa.float32()),
        (3, pa.float16()),
    ]:
        for nulls in (False, True):
            by_name[f"vector {size} {item} {nulls}"] = partial(
                vectors, size=size, item=item, nulls=nulls
            )
    by_name["flags"] = partial(vectors, size=9, item=pa.bool_(), nulls=True)
    by_name["vectors of vectors"] = lambda count, random: pa.FixedSizeListArray.from_arrays(
        vectors(2 * count, random, size=3, item=pa.float64(), nulls=False), 2
    )
    texts = pa.array([f"item {number}" for number in range(100)])
    for index in (pa.int8(), pa.uint16(), pa.int32(), pa.int64()):
        by_name[f"codes {index}"] = partial(codes, index=index, items=texts)
    by_name["codes of numbers"] = partial(codes, index=pa.int32(), items=pa.array(range(0, 900, 9)))
    by_name["boolean"] = lambda count, random: pa.array(random.random(count) < 0.5)
    by_name["one boolean"] = lambda count, _: pa.array([True] * count, pa.bool_())
    by_name["null"] = lambda count, _: pa.nulls(count)
    for width in (1, 7, 300):
        by_name[f"binary {width}"] = lambda count, random, width=width: pa.array(
            [random.bytes(width) for _ in range(count)], pa.binary(width)
        )
    by_name["one binary 40"] = lambda count, _: pa.array([b"q" * 40] * count, pa.binary(40))
    for arrow_type in (pa.decimal128(38, 4), pa.decimal256(60, 4)):
        for high in (10**12, 5):
            by_name[f"{arrow_type} {high}"] = lambda count, random, t=arrow_type, high=high: (
                pa.array(random.integers(-high, high, count)).cast(t)
            )
    return by_name


SHAPES = shapes()


def with_nulls(array: pa.Array, rate: float, random: Random) -> pa.Array:
    if rate == 0 or pa.types.is_null(array.type):
        return array
    is_valid = random.random(len(array)) >= rate
    return array.take(pa.array(np.arange(len(array)), mask=~is_valid))


def bare(count: int, random: Random, rate: float, shape: Shape) -> pa.Array:
    return with_nulls(shape(count, random), rate, random)


def lists(
    count: int, random: Random, rate: float, shape: Shape, items: Callable[..., pa.Array] = bare
) -> pa.Array:
    lengths = random.integers(0, 5, count) * (random.random(count) < 0.8)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = pa.array(random.random(count) < rate) if rate else None
    inner = items(int(lengths.sum()), random, rate, shape)
    return pa.ListArray.from_arrays(offsets, inner, mask=mask)


def large_lists(count: int, random: Random, rate: float, shape: Shape) -> pa.Array:
    plain = lists(count, random, rate, shape)
    return plain.cast(pa.large_list(plain.type.value_type))


def structs(count: int, random: Random, rate: float, shape: Shape) -> pa.Array:
    parts = [value(count, random, rate, shape) for value in (bare, lists)]
    mask = pa.array(random.random(count) < rate) if rate else None
    return pa.StructArray.from_arrays(parts, ["a", "b"], mask=mask)


NESTINGS: dict[str, Callable[..., pa.Array]] = {
    "bare": bare,
    "lists": lists,
    "large lists": large_lists,
    "lists of lists": partial(lists, items=lists),
    "structs": structs,
    "lists of structs": partial(lists, items=structs),
    "lists of lists of structs": partial(lists, items=partial(lists, items=structs)),
}


def table_of(
    count: int, nesting: str, rate: float, names: Iterable[str] = SHAPES, seed: int = 0
) -> pa.Table:
    """A column of each shape, each the middle of a longer array."""
    random = np.random.default_rng(seed)
    make = NESTINGS[nesting]
    return pa.table(
        {name: make(count + 7, random, rate, SHAPES[name]).slice(3, count) for name in names}
    )


def plain(array: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array; dictionaries, which both programs may fill as they like, are looked up."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return array


def same(ours: pa.Array, theirs: pa.ChunkedArray | pa.Array) -> bool:
    left, right = plain(ours), plain(theirs)
    if "dictionary" in str(left.type):
        # Both programs may fill the dictionaries in there as they like.
        return bool(left.to_pylist() == right.to_pylist())
    return bool(left.equals(right))


def write_by_pylance(
    batches: Sequence[pa.RecordBatch], path: Path, version: FileVersion, **options: int
) -> None:
    with LanceFileWriter(str(path), batches[0].schema, version=version.value, **options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_by_us(
    batches: Sequence[pa.RecordBatch], path: Path, version: FileVersion, **options: int
) -> WrittenFile:
    schema = assign_ids(from_arrow(batches[0].schema))
    writer = FileWriter(schema, version, **options)
    with path.open("wb") as file:
        for batch in batches:
            file.writelines(writer.write(batch))
        rest, written = writer.finish()
        file.writelines(rest)
    return written


class Reading:
    """Our reading of a file."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self._ranges = read_from(data)
        self.reader: FileReader = answer(open_file(len(data)), self._ranges)
        self.fields = self.reader.metadata.schema.fields
        leaves = (leaf for field in self.fields for leaf in field.leaves())
        self._column_of = {leaf.id: column for column, leaf in enumerate(leaves)}
        self.num_rows = self.reader.metadata.num_rows

    def read(self, start: int, stop: int) -> list[pa.Array]:
        requests = self.reader.read(self.fields, self._column_of, start, stop)
        return answer(requests, self._ranges)

    def take(self, offsets: Iterable[int]) -> list[pa.Array]:
        row_offsets = np.array(list(offsets), np.uint64)
        return answer(self.reader.take(self.fields, self._column_of, row_offsets), self._ranges)

    def layouts(self) -> list[list[str | None]]:
        columns = columns_of(self.reader, range(len(self._column_of)), self._ranges)
        return [
            [
                unpack_encoding(page.encoding, pb.PageLayout).WhichOneof("layout")
                for page in column.pages
            ]
            for column in columns
        ]


def rows_within(count: int, random: Random) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Some ranges of rows, and some sets of them."""
    ends = [sorted(random.integers(0, count + 1, 2).tolist()) for _ in range(2)]
    ranges = [(0, count), (count // 2, count // 2), *((start, stop) for start, stop in ends)]
    sets = [sorted({*random.integers(0, count, size).tolist()}) for size in (1, 60)]
    return ranges, [[], *sets] if count else [[]]


def assert_we_read(path: Path, table: pa.Table, seed: int = 0) -> None:
    reading = Reading(path)
    count = table.num_rows
    assert reading.num_rows == count
    ranges, sets = rows_within(count, np.random.default_rng(seed))
    for start, stop in ranges:
        for name, array in zip(table.column_names, reading.read(start, stop), strict=True):
            array.validate(full=True)
            assert array.type == table[name].type, name
            assert same(array, table[name][start:stop]), (name, start, stop)
    for offsets in sets:
        for name, array in zip(table.column_names, reading.take(offsets), strict=True):
            array.validate(full=True)
            expected = table[name].take(pa.array(offsets, pa.int64()))
            assert same(array, expected), (name, offsets)


def assert_pylance_reads(path: Path, table: pa.Table, seed: int = 0) -> None:
    theirs = LanceFileReader(str(path))
    count = table.num_rows
    ranges, sets = rows_within(count, np.random.default_rng(seed))
    for start, stop in ranges:
        if start == stop:
            continue
        read = theirs.read_range(start, stop - start).to_table()
        for name in table.column_names:
            assert read[name].type == table[name].type, name
            assert same(plain(table[name][start:stop]), read[name]), (name, start, stop)
            assert not part_of_null(read[name]), (name, start, stop)
    for offsets in sets:
        if not offsets:
            continue
        taken = theirs.take_rows(offsets).to_table()
        for name in table.column_names:
            assert same(plain(table[name].take(offsets)), taken[name]), (name, offsets)


def unsliced(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in arrays that start at their buffers' start.

    pylance does not write all slices of structs with nulls, and Arrow does not take rightly from
    all slices of vectors of vectors.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return list(pa.ipc.open_stream(sink.getvalue()))


def check_both_ways(
    folder: Path, version: FileVersion, batches: Sequence[pa.RecordBatch], **limits: int
) -> None:
    sound = unsliced(batches)
    table = pa.Table.from_batches(sound)
    their_limits = {"data_cache_bytes": limits["page"]} if limits else {}
    write_by_pylance(sound, folder / "theirs.lance", version, **their_limits)
    assert_we_read(folder / "theirs.lance", table)
    our_limits = {"max_page_bytes": limits["page"]} if limits else {}
    write_by_us(batches, folder / "ours.lance", version, **our_limits)
    assert_we_read(folder / "ours.lance", table)
    assert_pylance_reads(folder / "ours.lance", table)


def in_batches(table: pa.Table, rows: int | None = None) -> list[pa.RecordBatch]:
    return table.combine_chunks().to_batches(max_chunksize=rows)


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize(("count", "rate"), [(1, 0), (1, 1), (1025, 0), (1025, 0.1), (600, 1)])
@pytest.mark.essential
def test_every_column_shape_reads_alike(
    tmp_path: Path, version: FileVersion, count: int, rate: float
) -> None:
    """The choice of encoding depends on types, numbers of rows and nulls."""
    check_both_ways(tmp_path, version, in_batches(table_of(count, "bare", rate)))


SOME = [
    *("small int32", "few int64", "full double", "boolean", "text string", "huge string"),
    *("few large_binary", "binary 7", "binary 300", "vector 4 float True", "vector 64 float True"),
    *("codes int8", "null"),
]
"""One shape for each layout and codec."""


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_lists_and_structs_read_alike(tmp_path: Path, version: FileVersion, nesting: str) -> None:
    """Levels of nested columns are Lance's own, and pylance is the judge."""
    check_both_ways(tmp_path, version, in_batches(table_of(100, nesting, 0.3, SOME)))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_files_of_many_small_pages_agree(tmp_path: Path, version: FileVersion) -> None:
    """Each page declares its own levels and layout."""
    batches = [
        batch
        for part, (count, rate) in enumerate([(30, 0), (1, 1), (200, 0.5), (90, 0), (4, 0.2)])
        for nesting in ("lists of structs",)
        for batch in in_batches(table_of(count, nesting, rate, SOME, seed=part), 70)
    ]
    check_both_ways(tmp_path, version, batches, page=2000)
    pages = Reading(tmp_path / "ours.lance").layouts()
    assert max(len(page) for page in pages) > 5


def test_both_read_empty_files(tmp_path: Path) -> None:
    """A column without pages must still be readable."""
    table = table_of(3, "structs", 0, SOME).slice(0, 0)
    for version in VERSIONS:
        write_by_us(
            [pa.RecordBatch.from_pylist([], table.schema)], tmp_path / "ours.lance", version
        )
        assert Reading(tmp_path / "ours.lance").num_rows == 0
        assert LanceFileReader(str(tmp_path / "ours.lance")).num_rows() == 0


def test_shapes_cover_every_pylance_layout(tmp_path: Path) -> None:
    """A layout that never occurs would be untested in all of these comparisons."""
    layouts = set()
    for rate in (0, 1):
        batches = in_batches(table_of(300, "structs", rate, SOME))
        write_by_pylance(batches, tmp_path / "theirs.lance", FileVersion.V2_2)
        layouts |= {
            name for layout in Reading(tmp_path / "theirs.lance").layouts() for name in layout
        }
    assert layouts == {"mini_block_layout", "full_zip_layout", "constant_layout"}


def test_constant_levels_have_no_width(tmp_path: Path) -> None:
    """Where pylance cuts a list into pages, a page can declare nulls and have none."""
    rows = [list(range(300_000)), [], None, [1, 2]]
    batches = in_batches(pa.table({"a": pa.array(rows, pa.list_(pa.int64()))}))
    for version in VERSIONS:
        write_by_pylance(batches, tmp_path / "theirs.lance", version)
        assert_we_read(tmp_path / "theirs.lance", pa.Table.from_batches(batches))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_mostly_empty_lists_read_alike(tmp_path: Path, version: FileVersion) -> None:
    """Tens of thousands of levels for three values exceed a chunk."""
    lengths = np.zeros(70_003, np.int64)
    lengths[[1, 70_001]] = 3
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    count = int(lengths.sum())
    random = np.random.default_rng(0)
    table = pa.table(
        {
            name: pa.ListArray.from_arrays(offsets, SHAPES[name](count, random))
            for name in ("full int64", "boolean", "text string", "codes int8")
        }
    )
    check_both_ways(tmp_path, version, in_batches(table))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_pylance_operates_on_files_we_wrote(tmp_path: Path, version: FileVersion) -> None:
    """Pylance takes, filters, compacts and merges their rows."""
    (tmp_path / "data").mkdir()
    parts, fragments = [], []
    for number, rate in enumerate((0, 0.3)):
        columns = {"key": pa.array(np.arange(500) + 500 * number)}
        for nesting in ("bare", "lists", "structs"):
            for name in SOME:
                (column,) = table_of(500, nesting, rate, [name], seed=number)
                columns[f"{name} {nesting}"] = column
        (part,) = in_batches(pa.table(columns))
        parts.append(part)
        path = tmp_path / "data" / f"{number}.lance"
        written = write_by_us([part], path, version, max_page_bytes=10_000)
        ids, columns_of = list(written.field_ids), list(written.column_indices)
        file = DataFile(path.name, ids, columns_of, *version.data_file_numbers)
        fragments.append(FragmentMetadata(number, [file], 500, None))
    whole = pa.Table.from_batches(unsliced(parts))
    overwrite = lance.LanceOperation.Overwrite(whole.schema, fragments)
    dataset = lance.LanceDataset.commit(str(tmp_path), overwrite)

    def assert_same(theirs: pa.Table, expected: pa.Table) -> None:
        for name in expected.column_names:
            assert same(plain(expected[name]), theirs[name]), name

    dataset.validate()
    assert_same(dataset.to_table(), whole)
    offsets = [999, 3, 500, 77]
    assert_same(dataset.take(offsets), whole.take(offsets))
    assert_same(dataset.to_table(filter="key >= 490 and key < 510"), whole.slice(490, 20))
    dataset.delete("key < 100")
    dataset.optimize.compact_files()
    assert_same(dataset.to_table(), whole.slice(100))
    merge = dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(whole.slice(90, 30))
    rows = dataset.to_table()
    assert_same(rows.take(pc.sort_indices(rows["key"])), whole.slice(90))


@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("count", [2, 1023, 1024, 4096, 4097])
def test_both_agree_on_chunk_boundaries(tmp_path: Path, version: FileVersion, count: int) -> None:
    """Values at the edges of chunks are where they get lost."""
    for rate in (0, 0.3):
        check_both_ways(tmp_path, version, in_batches(table_of(count, "bare", rate)))


@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_nested_shapes_read_alike(tmp_path: Path, version: FileVersion, nesting: str) -> None:
    """Nesting and rates of nulls together decide which levels are stored."""
    is_bare = nesting == "bare"
    names = list(SHAPES) if is_bare else some_of(SHAPES, one_in=3, seed=f"{nesting} {version}")
    rates = NULL_RATES if is_bare else [0.01, 0.5, 0.99]
    for count, rate in [(1, 0), (5, 0.5), *((200, rate) for rate in rates)]:
        batches = in_batches(table_of(count, nesting, rate, names, seed=count))
        check_both_ways(tmp_path, version, batches)


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_many_rows_read_alike(tmp_path: Path, version: FileVersion) -> None:
    """Only long columns have pages of many chunks."""
    for nesting in ("bare", "structs", "lists of structs"):
        names = ["small int32", "few int64", "full double", "unique string", "vector 4 float True"]
        batches = in_batches(table_of(100_000, nesting, 0.1, names), 9000)
        check_both_ways(tmp_path, version, batches, page=300_000)


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_a_million_rows_read_alike(tmp_path: Path, version: FileVersion) -> None:
    """Only large columns have several pages of the usual size."""
    random = np.random.default_rng(6)
    count = 1_000_000
    letters = random.integers(97, 123, 12 * count, np.uint8)
    offsets = np.arange(0, 12 * count + 1, 12, dtype=np.int32)
    names = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
    )
    table = pa.table(
        {
            "id": np.arange(count),
            "x": with_nulls(pa.array(random.standard_normal(count)), 0.1, random),
            "name": with_nulls(names, 0.1, random),
            "vector": vectors(count, random, size=16, item=pa.float32(), nulls=False),
            "list": lists(count, random, 0.1, SHAPES["small int32"]),
        }
    )
    check_both_ways(tmp_path, version, in_batches(table))
