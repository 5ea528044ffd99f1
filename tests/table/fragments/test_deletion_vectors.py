import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from lance_stream.table.fragments import deletion_vectors
from lance_stream.table.fragments.deletion_vectors import (
    bitmap_size,
    decode_bitmap,
    decode_bitmap_up_to,
    decode_deletion_vector,
    encode_deletion_vector,
    which_in_bitmap,
)
from lance_stream.table.fragments.fragment import DeletionFileType

ARROW, BITMAP = DeletionFileType.ARROW_ARRAY, DeletionFileType.BITMAP
ROWS = 1 << 32

# Numbers in few containers of all three forms: scattered, dense, and runs.
lows = st.integers(0, (1 << 16) - 1)
containers = st.one_of(
    st.lists(lows, min_size=1, max_size=50),
    st.tuples(lows, st.integers(1, 9000)).map(lambda r: range(r[0], min(r[0] + r[1], 1 << 16))),
    st.integers(1, 13).map(lambda step: range(0, 1 << 16, step)),
)
offset_sets = st.dictionaries(st.sampled_from([0, 1, 2, 3, 4, 700, (1 << 16) - 1]), containers).map(
    lambda parts: sorted({key << 16 | low for key, lows in parts.items() for low in lows})
)


def arrow_file(
    column: pa.Array, nullable: bool = False, name: str = "row_id", batches: int = 1, **how: object
) -> bytes:
    schema = pa.schema([pa.field(name, column.type, nullable)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**how)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch([column], schema=schema))
    return sink.getvalue().to_pybytes()


@settings(max_examples=30)
@given(offset_sets.filter(bool))
def test_offsets_round_trip_in_either_form(offsets: list[int]) -> None:
    """A lost offset would show a deleted row, and the order of the given offsets must
    not matter.
    """
    shuffled = np.random.default_rng(0).permutation(offsets)
    file_type, data = encode_deletion_vector(shuffled)
    assert file_type is (BITMAP if len(offsets) >= 5000 else ARROW)
    decoded = decode_deletion_vector(data, file_type, ROWS, len(offsets))
    assert decoded.dtype == np.uint32
    assert decoded.tolist() == offsets


@settings(max_examples=30)
@given(offset_sets, st.booleans())
def test_roaring_bitmaps_decode_as_pyroaring_writes(offsets: list[int], with_runs: bool) -> None:
    """Lance writes the portable format of Roaring, with and without runs."""
    bitmap = BitMap(offsets)
    if with_runs:
        bitmap.run_optimize()
    assert decode_deletion_vector(bitmap.serialize(), BITMAP, ROWS).tolist() == offsets


@pytest.mark.parametrize(("count", "file_type"), [(1, ARROW), (4999, ARROW), (5000, BITMAP)])
def test_the_form_changes_at_five_thousand(count: int, file_type: DeletionFileType) -> None:
    """pylance changes at the same count, and a differing writer would make files larger."""
    assert encode_deletion_vector(np.arange(count))[0] is file_type


def test_arrow_deletion_vectors_are_one_batch() -> None:
    """pylance expects one batch with one column of this name and type."""
    _, data = encode_deletion_vector([3, 1])
    table = pa.ipc.open_file(data).read_all()
    assert table.schema == pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    assert table["row_id"].to_pylist() == [1, 3]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_unordered_and_compressed_offsets_are_read(compression: str | None) -> None:
    """The specification demands neither order nor absence of compression."""
    data = arrow_file(pa.array([*range(2000, 3000), 5], pa.uint32()), compression=compression)
    assert decode_deletion_vector(data, ARROW, 3000).tolist() == [5, *range(2000, 3000)]


@pytest.mark.parametrize("offsets", [[], [-1], [-1, 5], [1 << 32]])
def test_invalid_offset_sets_are_not_written(offsets: list[int]) -> None:
    """Repeated, negative or large offsets would make a file that no reader accepts."""
    with pytest.raises(InvalidInputError):
        encode_deletion_vector(np.array(offsets, np.int64))


@pytest.mark.parametrize("count", [3, 6000])
def test_offsets_outside_fragments_are_corrupt(count: int) -> None:
    """The file belongs to another fragment, whose rows would be shown or hidden wrongly."""
    file_type, data = encode_deletion_vector(np.arange(count) * 2)
    last = (count - 1) * 2
    assert len(decode_deletion_vector(data, file_type, last + 1)) == count
    with pytest.raises(CorruptDataError, match=f"marks row {last} as deleted"):
        decode_deletion_vector(data, file_type, last)


def test_counts_unlike_manifests_are_corrupt() -> None:
    """Counting rows uses the manifest and scans use the file, and they must agree; zero means not
    stated.
    """
    file_type, data = encode_deletion_vector([1, 2])
    with pytest.raises(CorruptDataError, match="has 2 offsets, but 3 according to the manifest"):
        decode_deletion_vector(data, file_type, 10, 3)
    assert len(decode_deletion_vector(data, file_type, 10, 0)) == 2


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (arrow_file(pa.array([1], pa.int32())), "instead of one"),
        (arrow_file(pa.array([1], pa.uint32()), nullable=True), "instead of one"),
        (arrow_file(pa.array([1], pa.uint32()), name="x"), "instead of one"),
        (arrow_file(pa.array([1], pa.uint32()), batches=2), "has 2 batches"),
        (arrow_file(pa.array([1], pa.uint32()), batches=0), "has 0 batches"),
        (arrow_file(pa.array([1, 2, 3, 4], pa.uint32())), "has 4 rows"),
        (arrow_file(pa.array([1, None], pa.uint32())), "has nulls"),
        (b"", "not an Arrow file"),
        (b"ARROW1\0\0", "truncated"),
    ],
)
def test_misshapen_arrow_files_are_corrupt(data: bytes, what: str) -> None:
    """Another column or type would be read as offsets of rows."""
    with pytest.raises(CorruptDataError, match=what):
        decode_deletion_vector(data, ARROW, 3)


def runs(*pairs: tuple[int, int], count: int) -> bytes:
    header = (12347).to_bytes(4, "little") + b"\x01" + np.array([0, count - 1], "<u2").tobytes()
    return header + np.array([len(pairs), *sum(pairs, ())], "<u2").tobytes()


def test_run_containers_state_start_and_length() -> None:
    """The stored length is one less than the length."""
    data = runs((3, 1), (9, 0), count=3)
    assert decode_deletion_vector(data, BITMAP, 10).tolist() == [3, 4, 9]
    assert list(BitMap.deserialize(data)) == [3, 4, 9]


def test_runs_may_touch() -> None:
    """Only writers that join runs as far as possible leave a number between two."""
    data = runs((3, 1), (5, 0), count=3)
    assert decode_deletion_vector(data, BITMAP, 10).tolist() == [3, 4, 5]


@pytest.mark.parametrize("count", [4095, 4096, 4097])
def test_large_containers_are_bitsets(count: int) -> None:
    """A container of more than 4096 numbers is stored as bits, and is as long as one of 4096."""
    numbers = [*range(0, 2 * count, 2), 1 << 16]
    data = BitMap(numbers).serialize()
    assert decode_deletion_vector(data, BITMAP, ROWS).tolist() == numbers
    assert which_in_bitmap(data, np.array([0, 1 << 16], np.uint64)).tolist() == [True, True]
    assert which_in_bitmap(data, np.array([1 << 16], np.uint64)).tolist() == [True]


@pytest.mark.parametrize("file_type", [ARROW, BITMAP])
def test_all_rows_can_be_deleted(
    file_type: DeletionFileType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more offset than rows is refused, and more than can be listed."""
    offsets = np.arange(5, dtype=np.uint32)
    arrow = arrow_file(pa.array(offsets))
    data = arrow if file_type is ARROW else BitMap(offsets).serialize()
    for limit in 5, 4:
        monkeypatch.setattr(deletion_vectors, "MAX_MATERIALIZED", limit)
        if limit == 5:
            assert decode_deletion_vector(data, file_type, 5).tolist() == offsets.tolist()
            continue
        with pytest.raises(UnsupportedFeatureError, match=r"5 .* more than are supported"):
            decode_deletion_vector(data, file_type, 5)


@pytest.mark.parametrize(("limit", "numbers"), [(2, None), (3, [1, 4, 9]), (4, [1, 4, 9])])
def test_bitmaps_are_decoded_to_a_limit(limit: int, numbers: list[int] | None) -> None:
    """A caller that needs few rows does not decode many."""
    decoded = decode_bitmap_up_to(PLAIN, limit)
    assert (None if decoded is None else decoded.tolist()) == numbers


PLAIN = BitMap([1, 4, 9]).serialize()  # too few and far apart for runs


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not a roaring bitmap"),
        (b"\0\0\0\0", "cookie 0"),
        ((12346).to_bytes(4, "little") + b"\xff\xff\xff\xff", "4294967295 containers"),
        ((12347 | 0xFFFF << 16).to_bytes(4, "little"), "truncated"),
        (PLAIN[:-1], "truncated"),
        (PLAIN + b"\0", "ends at byte"),
        (PLAIN[:-6] + np.array([1, 1, 3], "<u2").tobytes(), "do not ascend"),
        (runs((3, 5), (4, 0), count=7), "overlap"),
        (runs((9, 0), (3, 0), count=2), "overlap"),
        (runs((65535, 1), count=2), "overlap"),
        (runs((3, 0), count=2), "1 numbers instead of 2"),
        (runs(count=1), "0 numbers instead of 1"),
        (
            BitMap([1, 1 << 16]).serialize().replace(b"\0\0\0\0\1\0\0\0", b"\1\0\0\0\1\0\0\0"),
            "ascend",
        ),
    ],
)
def test_rule_breaking_roaring_bitmaps_are_corrupt(data: bytes, what: str) -> None:
    """Libraries accept some of these bytes and give offsets that are not in ascending order."""
    with pytest.raises(CorruptDataError, match=what):
        decode_deletion_vector(data, BITMAP, 1 << 20)


def test_small_files_cannot_claim_many_offsets() -> None:
    """A bitmap that states more offsets than the fragment has rows is refused undecoded."""
    everything = BitMap()
    everything.add_range(0, 1 << 31)
    everything.run_optimize()
    data = everything.serialize()
    assert len(data) < 1 << 20
    with pytest.raises(CorruptDataError, match="2147483648 offsets, but the fragment has 100"):
        decode_deletion_vector(data, BITMAP, 100)
    with pytest.raises(UnsupportedFeatureError, match="more than are supported"):
        decode_deletion_vector(data, BITMAP, 1 << 32)


def test_lookups_do_not_expand_huge_bitmaps() -> None:
    """A run of 2^32 numbers takes a few bytes, but 16 GiB when it is expanded."""
    everything = BitMap()
    everything.add_range(0, 1 << 32)
    everything.remove(70_000)
    everything.run_optimize()
    data = everything.serialize()
    assert bitmap_size(data) == (1 << 32) - 1
    numbers = np.array([1 << 40, 70_000, 3, 69_999, (1 << 32) - 1, 3], np.uint64)
    assert which_in_bitmap(data, numbers).tolist() == [False, False, True, True, True, True]
    with pytest.raises(CorruptDataError, match="numbers, but at most 100 are possible"):
        decode_bitmap(data, 100)
    assert decode_bitmap_up_to(data, 100) is None


@given(
    st.sets(st.integers(0, 300_000) | st.integers(0, 2**32 - 1)),
    st.lists(st.integers(0, 300_000) | st.integers(0, 2**64 - 1)),
    st.booleans(),
)
def test_lookups_work_in_all_container_kinds(
    some: set[int], requested: list[int], dense: bool
) -> None:
    """Arrays, bitsets and runs are searched in their own ways, and pyroaring is the judge."""
    numbers = BitMap(some)
    if dense:
        numbers.add_range(100_000, 150_000)
        numbers |= BitMap(range(200_000, 220_000, 2))
        numbers.run_optimize()
    requested += list(some)[:10]
    result = which_in_bitmap(numbers.serialize(), np.array(requested, np.uint64))
    assert result.tolist() == [value < 1 << 32 and value in numbers for value in requested]


@pytest.mark.parametrize("offsets", [[], [3], [1 << 17]])
def test_lookups_notice_damaged_bitmaps(offsets: list[int]) -> None:
    """A lookup that reads only some containers must not accept a truncated bitmap."""
    data = BitMap([*range(0, 9000, 2), 1 << 16]).serialize()
    for damaged in (b"", data[:-1], data + b"\0"):
        with pytest.raises(CorruptDataError):
            which_in_bitmap(damaged, np.array(offsets, np.uint64))


mixed = BitMap([*range(100), *range(1 << 17, (1 << 17) + 9000, 2), *range(1 << 18, 270_000)])
mixed.run_optimize()
FILES = {
    "arrow": (ARROW, encode_deletion_vector([5, 7, 9, 2000])[1]),
    "lz4": (ARROW, arrow_file(pa.array(range(200), pa.uint32()), compression="lz4")),
    "zstd": (ARROW, arrow_file(pa.array(range(200), pa.uint32()), compression="zstd")),
    "bitmap": (BITMAP, mixed.serialize()[:200]),
    "whole bitmap": (BITMAP, runs((3, 1), (9, 0), count=3)),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_deletion_files_are_harmless(name: str) -> None:
    """Any prefix or changed byte must decode to valid offsets or raise BadDataError."""
    file_type, data = FILES[name]
    damaged = [data[:stop] for stop in range(len(data))]
    for index in range(len(data)):
        for flip in (0x01, 0xFF):
            flipped = bytearray(data)
            flipped[index] ^= flip
            damaged.append(bytes(flipped))
    refused = 0
    for value in damaged:
        try:
            deleted = decode_deletion_vector(value, file_type, 300_000)
        except BadDataError:
            refused += 1
        else:
            assert len(deleted) <= 300_000
            assert (deleted[1:] > deleted[:-1]).all()
    assert refused > len(data) // 2
