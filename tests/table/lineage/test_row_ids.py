from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream._proto import rowids_pb2
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from lance_stream.table.lineage import row_ids
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids, encode_row_ids

MAX = (1 << 64) - 1
Segment = rowids_pb2.U64Segment
Array = rowids_pb2.EncodedU64Array

near = st.integers(0, 400)
far = st.integers(0, MAX)
# Ids as tables have them: runs, with holes, moved around, and some that are anywhere.
runs = st.tuples(near, st.integers(1, 60)).map(lambda run: list(range(run[0], run[0] + run[1])))
id_lists = st.one_of(
    st.lists(far, max_size=40, unique=True),
    st.lists(near, max_size=200, unique=True),
    st.sets(near, max_size=300).map(sorted),
    st.lists(runs, max_size=6).map(lambda parts: list(dict.fromkeys(chain.from_iterable(parts)))),
    st.builds(lambda base, ids: [base + id_ for id_ in ids], far.map(lambda x: x // 2), runs),
)


def u64(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.uint64)


def message_of(*segments: rowids_pb2.U64Segment) -> bytes:
    return rowids_pb2.RowIdSequence(segments=segments).SerializeToString()


def kind_of(data: bytes) -> str:
    (segment,) = rowids_pb2.RowIdSequence.FromString(data).segments
    return str(segment.WhichOneof("segment"))


SEGMENTS = {
    "a range": (row_ids.Ranges(u64([5]), u64([9])), [5, 6, 7, 8]),
    "ranges": (row_ids.Ranges(u64([20, 5, 0]), u64([23, 9, 1])), [20, 21, 22, 5, 6, 7, 8, 0]),
    "no range": (row_ids.Ranges(u64([]), u64([])), []),
    "an empty range": (row_ids.Ranges(u64([5, 7]), u64([5, 8])), [7]),
    "a range up to the end": (row_ids.Ranges(u64([MAX - 2]), u64([MAX])), [MAX - 2, MAX - 1]),
    "holes": (row_ids.RangeWithHoles(5, 11, u64([6, 7, 9])), [5, 8, 10]),
    "holes at the ends": (row_ids.RangeWithHoles(5, 10, u64([5, 9])), [6, 7, 8]),
    "no holes": (row_ids.RangeWithHoles(5, 7, u64([])), [5, 6]),
    "only holes": (row_ids.RangeWithHoles(5, 7, u64([5, 6])), []),
    "bits": (row_ids.RangeWithBitmap(5, 15, bytes([0b1010_0110, 0b10])), [6, 7, 10, 12, 14]),
    "no bits": (row_ids.RangeWithBitmap(5, 13, bytes(1)), []),
    "values": (row_ids.Values(u64([0, 5, 7, MAX])), [0, 5, 7, MAX]),
    "unordered values": (row_ids.Values(u64([7, 0, 9, 5])), [7, 0, 9, 5]),
    "no values": (row_ids.Values(u64([])), []),
}
NEIGHBORS = [*range(25), MAX - 3, MAX - 2, MAX - 1, MAX]


@pytest.mark.parametrize("kind", SEGMENTS)
def test_segments_behave_like_lists(kind: str) -> None:
    """A sequence may consist of any segments, also of those that our writer would not choose."""
    segment, ids = SEGMENTS[kind]
    for segments, expected in (
        ((segment,), ids),
        ((segment, row_ids.Values(u64([50, 40]))), [*ids, 50, 40]),
        ((row_ids.Ranges(u64([30]), u64([32])), segment), [30, 31, *ids]),
    ):
        sequence = RowIdSequence(segments)
        assert (len(sequence), sequence.to_array().tolist()) == (len(expected), expected)
        assert sequence.largest == max(expected, default=-1)
        backwards = np.arange(len(expected))[::-1]
        assert sequence.take(backwards).tolist() == expected[::-1]
        for start in range(len(expected) + 1):
            assert sequence.slice(start, len(expected)).tolist() == expected[start:]
            remaining = expected[:start] + expected[start + 1 :]
            if start < len(expected):
                assert sequence.without([start]).to_array().tolist() == remaining
        positions = [expected.index(one) if one in expected else -1 for one in NEIGHBORS]
        assert sequence.find(u64(NEIGHBORS)).tolist() == positions
        assert decode_row_ids(encode_row_ids(sequence)).to_array().tolist() == expected


@given(id_lists)
def test_row_ids_round_trip(ids: list[int]) -> None:
    """An id that changes in storage would give a row another identity."""
    decoded = decode_row_ids(encode_row_ids(u64(ids)), len(ids))
    assert decoded.to_array().dtype == np.uint64
    assert decoded.to_array().tolist() == ids
    assert len(decoded) == len(ids)
    assert encode_row_ids(decoded) == encode_row_ids(u64(ids))


@given(id_lists, st.data())
def test_parts_of_a_sequence_decode_alone(ids: list[int], data: st.DataObject) -> None:
    """Readers of a few rows must not expand a million ids."""
    sequence = decode_row_ids(encode_row_ids(u64(ids)))
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    assert sequence.slice(start, stop).tolist() == ids[start:stop]
    offsets = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=20)) if ids else []
    assert sequence.take(offsets).tolist() == [ids[offset] for offset in offsets]
    remaining = [id_ for index, id_ in enumerate(ids) if index not in offsets]
    assert sequence.without(sorted(set(offsets))).to_array().tolist() == remaining


@given(id_lists, st.lists(st.one_of(near, far), max_size=30))
def test_rows_are_found_by_id(ids: list[int], others: list[int]) -> None:
    """Every kind of segment is searched differently, and must find what a dictionary finds."""
    sequence = decode_row_ids(encode_row_ids(u64(ids)))
    requested = [*others, *ids[::3]]
    index_by_id = {id_: index for index, id_ in enumerate(ids)}
    assert sequence.find(u64(requested)).tolist() == [
        index_by_id.get(value, -1) for value in requested
    ]


@given(id_lists.filter(bool))
def test_smallest_single_segment_is_chosen(ids: list[int]) -> None:
    """Row ids are part of every manifest, so their size is paid by each commit."""
    size = len(encode_row_ids(u64(ids)))
    values = Array.U64Array(values=u64(ids).astype("<u8").tobytes())
    rivals = [Segment(array=Array(u64_array=values))]
    low, high = min(ids), max(ids)
    if high - low < 1 << 16:
        offsets = (u64(ids) - np.uint64(low)).astype("<u2").tobytes()
        rivals.append(Segment(array=Array(u16_array=Array.U16Array(base=low, offsets=offsets))))
        if sorted(ids) == ids:
            there = np.zeros(high - low + 1, np.bool_)
            there[[id_ - low for id_ in ids]] = True
            bitmap = np.packbits(there, bitorder="little").tobytes()
            spanned = {"start": low, "end": min(high + 1, MAX)}
            rivals.append(
                Segment(range_with_bitmap=Segment.RangeWithBitmap(**spanned, bitmap=bitmap))
            )
            if there.all():
                rivals.append(Segment(range=Segment.Range(**spanned)))
    # A stored array states its base with up to 10 bytes; all that is allowed on top of the best.
    assert size <= min(len(message_of(rival)) for rival in rivals) + 12


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (range(100, 200), "range"),
        ([5], "range"),
        (sorted({*range(3000)} - {100, 999, 2000, 2500}), "range_with_holes"),
        (range(0, 1000, 3), "range_with_bitmap"),
        (range(0, 60_000, 999), "sorted_array"),
        ([7, 3, 900], "array"),
        ([0, MAX], "array"),
    ],
)
def test_the_smallest_segment_kind_is_chosen(ids: list[int], kind: str) -> None:
    """The kinds differ by a factor of a thousand for typical sequences."""
    data = encode_row_ids(u64(list(ids)))
    assert kind_of(data) == kind
    assert decode_row_ids(data).to_array().tolist() == list(ids)


def test_rows_moved_in_runs_store_runs() -> None:
    """Compactions move whole runs, for which an array of ids would be thousands of times larger."""
    moved = [*range(500, 900), *range(300), *range(4000, 9000)]
    data = encode_row_ids(u64(moved))
    kinds = [
        segment.WhichOneof("segment")
        for segment in rowids_pb2.RowIdSequence.FromString(data).segments
    ]
    assert kinds == ["range"] * 3
    (only,) = decode_row_ids(data).segments
    assert isinstance(only, row_ids.Ranges)


def test_unsorted_pieces_choose_kinds_separately() -> None:
    """One kind for the whole sequence would be the plain array."""
    ids = [*range(5000, 9000, 3), *range(1000), *range(10**6, 10**9, 10**7)]
    data = encode_row_ids(u64(ids))
    kinds = [
        segment.WhichOneof("segment")
        for segment in rowids_pb2.RowIdSequence.FromString(data).segments
    ]
    assert kinds == ["range_with_bitmap", "range", "sorted_array"]
    assert decode_row_ids(data).to_array().tolist() == ids


def test_scattered_ids_take_two_bytes() -> None:
    """Updates of scattered rows would otherwise add eight bytes per row to every manifest."""
    ids = np.arange(10**9, 10**9 + 10**6, 55, dtype=np.uint64)
    data = encode_row_ids(ids)
    assert len(data) < 2.05 * len(ids)
    decoded = decode_row_ids(data, len(ids))
    assert decoded.to_array().tolist() == ids.tolist()
    assert len(decoded.segments) == 1  # to be searched at once
    assert decoded.find(ids[::-7]).tolist() == list(range(len(ids)))[::-7]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_arrays_use_the_narrowest_width(width: int) -> None:
    """Manifests carry these arrays, so wider offsets than the ids need cost every commit."""
    largest_offset = {2: 900, 4: 1 << 16, 8: 1 << 32}[width]
    ids = [id_ for number in range(9) for id_ in (3 + largest_offset - 2 * number, 3 + 2 * number)]
    data = encode_row_ids(u64(ids))
    (segment,) = rowids_pb2.RowIdSequence.FromString(data).segments
    assert segment.array.WhichOneof("array") == f"u{width * 8}_array"


@pytest.mark.parametrize("kind", ["array", "sorted_array"])
def test_arrays_of_unknown_kind_are_corrupt(kind: str) -> None:
    """A later release may add a kind, whose ids must not be guessed."""
    with pytest.raises(CorruptDataError, match="unknown kind"):
        decode_row_ids(message_of(Segment(**{kind: Array()})))


def test_sequences_differing_in_one_id_differ() -> None:
    """Decoded sequences are cached and shared, so they must be read-only and never confused."""
    ids = np.arange(0, 900_000, 300, dtype=np.uint64)
    for index in range(0, len(ids), 97):
        changed = ids.copy()
        changed[index] += 1
        assert decode_row_ids(encode_row_ids(changed)).to_array().tolist() == changed.tolist()
    decoded = decode_row_ids(encode_row_ids(ids)).to_array()
    assert decoded.tolist() == ids.tolist()
    with pytest.raises(ValueError, match="read-only"):
        decoded[0] = 1


def test_sequences_equal_by_their_ids() -> None:
    """The same ids may be stored in other segments."""
    sequence = RowIdSequence.from_range(1, 3)
    assert sequence == RowIdSequence.concat(map(RowIdSequence.from_array, ([1], [2])))
    huge = RowIdSequence.from_range(1, 1 << 40)  # too long to be listed
    others = (RowIdSequence.from_range(1, 4), RowIdSequence.from_array([1, 3]), [1, 2], huge)
    assert all(sequence != other for other in others)


def test_bitmaps_count_from_the_lowest_bit() -> None:
    """Lance does so, although the specification says otherwise; the bytes are Lance's."""
    # Ids 0 to 9 without 1, as Lance writes them.
    data = bytes.fromhex("0a081a06100a1a02fd03")
    assert decode_row_ids(data, 9).to_array().tolist() == [0, *range(2, 10)]
    assert encode_row_ids(u64([0, *range(2, 10)])) == data


def test_new_ranges_are_encoded_without_expansion() -> None:
    """An append of two billion rows must not allocate their ids."""
    sequence = RowIdSequence.from_range(5, 5 + (1 << 31))
    data = encode_row_ids(sequence)
    assert len(data) < 20
    assert len(decode_row_ids(data, 1 << 31)) == 1 << 31
    assert decode_row_ids(data).slice((1 << 31) - 2, 1 << 31).tolist() == [
        3 + (1 << 31),
        4 + (1 << 31),
    ]
    with pytest.raises(UnsupportedFeatureError, match="too long for one array"):
        sequence.to_array()


@pytest.mark.floors
def test_empty_ranges_hide_no_ids() -> None:
    """Other writers store empty ranges, which confuse a search by the starts of ranges."""
    message = rowids_pb2.RowIdSequence()
    for start, stop in [(20, 30), (0, 10), (5, 5), (0, 0), (20, 20)]:
        span = message.segments.add().range
        span.start, span.end = start, stop
    sequence = decode_row_ids(message.SerializeToString(), 20)
    assert sequence.to_array().tolist() == [*range(20, 30), *range(10)]
    row_offsets = np.arange(32, dtype=np.uint64)
    assert sequence.find(row_offsets).tolist() == [*range(10, 20), *[-1] * 10, *range(10), -1, -1]


def test_sequences_are_joined_in_order() -> None:
    """A compaction concatenates the ids of its fragments."""
    parts = [RowIdSequence.from_range(5, 7), RowIdSequence.from_array([9, 1]), RowIdSequence()]
    joined = RowIdSequence.concat([*parts, RowIdSequence.from_range(0, 0)])
    assert joined.to_array().tolist() == [5, 6, 9, 1]
    assert joined == RowIdSequence.from_array([5, 6, 9, 1])
    assert joined != RowIdSequence.from_array([5, 6, 1, 9])
    assert encode_row_ids(RowIdSequence()) == b""


def test_invalid_ranges_and_offsets_are_refused() -> None:
    """Numpy would wrap negative offsets and return ids of other rows."""
    for start, stop in ((-1, 0), (5, 4), (0, 1 << 64)):
        with pytest.raises(InvalidInputError):
            RowIdSequence.from_range(start, stop)
    sequence = RowIdSequence.from_range(0, 10)
    for wrong in ([10], [-1]):
        with pytest.raises(InvalidInputError):
            sequence.take(wrong)
    assert sequence.slice(0, 10).tolist() == list(range(10))
    for wrong_start, wrong_stop in ((5, 11), (-1, 2), (4, 3)):
        with pytest.raises(InvalidInputError, match="are not within the 10 rows"):
            sequence.slice(wrong_start, wrong_stop)


def test_counts_unlike_fragments_are_corrupt() -> None:
    """A shifted sequence would give every later row the id of its neighbour."""
    with pytest.raises(CorruptDataError, match="10 rows has 9 row ids"):
        decode_row_ids(bytes.fromhex("0a081a06100a1a02fd03"), 10)


def u16(base: int, values: list[int]) -> rowids_pb2.EncodedU64Array:
    return Array(u16_array=Array.U16Array(base=base, offsets=np.array(values, "<u2").tobytes()))


HUGE = Segment(range=Segment.Range(start=0, end=1 << 63))


@pytest.mark.parametrize(
    ("segments", "what"),
    [
        ([Segment()], "an unknown kind"),
        ([HUGE], "more ids than"),
        ([HUGE, HUGE, HUGE], "more ids than"),
        ([Segment(range=Segment.Range(start=0, end=(1 << 32) + 1))], "more than a fragment"),
        ([Segment(range=Segment.Range(start=5, end=4))], "before it starts"),
        ([Segment(range_with_holes=Segment.RangeWithHoles(start=0, end=9))], "an unknown kind"),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(start=5, end=4, holes=u16(0, [])))],
            "before it starts",
        ),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(end=1 << 63, holes=u16(0, [1])))],
            "more ids than",
        ),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(end=9, holes=u16(0, [3, 3])))],
            "do not ascend",
        ),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(end=9, holes=u16(0, [3, 9])))],
            "outside of its range",
        ),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(start=4, end=9, holes=u16(0, [3])))],
            "outside of its range",
        ),
        (
            [Segment(range_with_bitmap=Segment.RangeWithBitmap(end=9, bitmap=b"\xff"))],
            "1 bytes cannot describe 9",
        ),
        (
            [Segment(range_with_bitmap=Segment.RangeWithBitmap(end=9, bitmap=b"\xff\x02"))],
            "past its end",
        ),
        (
            [Segment(range_with_bitmap=Segment.RangeWithBitmap(end=MAX, bitmap=b"\xff"))],
            "more ids than",
        ),
        ([Segment(sorted_array=u16(0, [2, 1]))], "do not ascend"),
        ([Segment(sorted_array=u16(0, [2, 2]))], "do not ascend"),
        ([Segment(range=Segment.Range(end=1 << 62))], "has 4611686018427387904 row ids"),
        ([Segment(range=Segment.Range(end=(1 << 62) + 1024))], "ranges .* more ids than"),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(end=1 << 62, holes=u16(0, [])))],
            "has 4611686018427387904 row ids",
        ),
        (
            [Segment(range_with_holes=Segment.RangeWithHoles(end=(1 << 62) + 1, holes=u16(0, [])))],
            "a range .* more ids than",
        ),
        ([Segment(array=u16(MAX, [0, 1]))], "beyond 64 bits"),
        ([Segment(array=Array())], "an unknown kind"),
        ([Segment(array=Array(u16_array=Array.U16Array(offsets=b"abc")))], "3 bytes"),
        ([Segment(array=Array(u64_array=Array.U64Array(values=b"abc")))], "3 bytes"),
    ],
)
def test_rule_breaking_segments_are_corrupt(
    segments: list[rowids_pb2.U64Segment], what: str
) -> None:
    """Stored segments are not trusted, and must never raise an error of numpy."""
    with pytest.raises(CorruptDataError, match=what):
        decode_row_ids(message_of(*segments))


def test_holes_may_begin_and_end_ranges() -> None:
    """pylance cuts no range when its first or last row is deleted."""
    holed = Segment.RangeWithHoles(start=4, end=9, holes=u16(0, [4, 6, 8]))
    assert decode_row_ids(message_of(Segment(range_with_holes=holed)), 2).to_array().tolist() == [
        5,
        7,
    ]


@pytest.mark.parametrize(
    "segment",
    [
        Segment(range=Segment.Range(start=5, end=5)),
        Segment(range_with_holes=Segment.RangeWithHoles(start=5, end=5, holes=u16(0, []))),
        Segment(range_with_bitmap=Segment.RangeWithBitmap(start=5, end=5)),
        Segment(sorted_array=u16(5, [])),
    ],
)
def test_segments_may_have_no_row_ids(segment: rowids_pb2.U64Segment) -> None:
    """Other writers leave them behind when all rows of a segment are gone."""
    one = Segment(range_with_holes=Segment.RangeWithHoles(start=7, end=8, holes=u16(0, [])))
    assert decode_row_ids(message_of(segment, one), 1).to_array().tolist() == [7]


def test_a_fragment_can_be_full() -> None:
    """Row offsets have 32 bits, so a fragment can have 2^32 rows, and no more."""
    full = Segment(range=Segment.Range(start=5, end=5 + (1 << 32)))
    assert len(decode_row_ids(message_of(full), 1 << 32)) == 1 << 32


@pytest.mark.parametrize(("limit", "num_segments"), [(4, 2), (5, 1), (6, 1)])
def test_few_ids_become_one_segment(
    limit: int, num_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups are faster in one list, but a few bytes can state any number of ids."""
    monkeypatch.setattr(row_ids, "_MAX_LISTED", limit)
    holed = Segment.RangeWithHoles(start=10, end=14, holes=u16(10, [1]))
    message = message_of(Segment(range=Segment.Range(end=2)), Segment(range_with_holes=holed))
    sequence = decode_row_ids(message)
    assert len(sequence.segments) == num_segments
    assert sequence.to_array().tolist() == [0, 1, 10, 12, 13]


@pytest.mark.parametrize(("limit", "num_segments"), [(1, 1), (2, 3), (3, 3)])
def test_pieces_of_row_ids_are_limited(
    limit: int, num_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting shuffled ids at each descent would cost more than it saves."""
    monkeypatch.setattr(row_ids, "_MAX_PIECES", limit)
    ids = [base + 2 * number for base in (1 << 40, 1 << 20, 0) for number in range(20)]
    data = encode_row_ids(u64(ids))
    assert decode_row_ids(data).to_array().tolist() == ids
    assert len(rowids_pb2.RowIdSequence.FromString(data).segments) == num_segments


@pytest.mark.parametrize(
    "segment",
    [
        Segment(array=u16(0, [*range(900, 0, -1)])),
        Segment(sorted_array=u16(0, [*range(0, 2700, 3)])),
        Segment(
            range_with_holes=Segment.RangeWithHoles(end=900, holes=u16(0, [*range(0, 900, 3)]))
        ),
        Segment(range_with_bitmap=Segment.RangeWithBitmap(end=8000, bitmap=b"\x05" * 1000)),
    ],
)
def test_long_sequences_are_decoded_once(segment: rowids_pb2.U64Segment) -> None:
    """The cache must know the size of each kind, and return what was decoded before."""
    data = message_of(segment)
    assert decode_row_ids(data) is decode_row_ids(bytes(bytearray(data)))


def test_long_lists_of_ranges_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is three numbers in memory, and so many rows are not listed."""
    monkeypatch.setattr(row_ids, "_MAX_LISTED", 10)
    data = message_of(*(Segment(range=Segment.Range(start=n, end=n + 9)) for n in range(0, 900, 9)))
    assert decode_row_ids(data) is decode_row_ids(bytes(bytearray(data)))


def test_any_bytes_are_read_or_refused() -> None:
    """Callers handle BadDataError only."""
    num_read = 0

    sound = encode_row_ids(RowIdSequence.from_array([3, 4, 5, 9, 7, 20]))
    damaged = st.builds(
        lambda at, byte: sound[:at] + bytes([byte]) + sound[at + 1 :],
        st.integers(0, len(sound) - 1),
        st.integers(0, 255),
    )

    @given(st.binary(max_size=60) | damaged)
    def read(data: bytes) -> None:
        nonlocal num_read
        try:
            sequence = decode_row_ids(data)
        except BadDataError:
            return
        num_read += 1
        if len(sequence) < 1000:
            assert len(sequence.to_array()) == len(sequence)

    read()
    assert num_read > 3
