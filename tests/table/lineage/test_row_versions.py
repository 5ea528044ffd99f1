import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream._proto import rowids_pb2
from lance_stream.errors import BadDataError, CorruptDataError, InvalidInputError
from lance_stream.table.lineage import row_versions
from lance_stream.table.lineage.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)
from lance_stream.table.messages import wire

version_lists = st.lists(
    st.tuples(st.integers(1, 30), st.one_of(st.integers(0, 3), st.just((1 << 64) - 1)))
).map(lambda runs: [version for length, version in runs for _ in range(length)])


def run(version: int, **span: object) -> rowids_pb2.RowDatasetVersionRun:
    return rowids_pb2.RowDatasetVersionRun(span=rowids_pb2.U64Segment(**span), version=version)


def message_of(*runs: rowids_pb2.RowDatasetVersionRun) -> bytes:
    return rowids_pb2.RowDatasetVersionSequence(runs=runs).SerializeToString()


def span(start: int, end: int) -> rowids_pb2.U64Segment.Range:
    return rowids_pb2.U64Segment.Range(start=start, end=end)


@given(version_lists)
def test_row_versions_round_trip(versions: list[int]) -> None:
    """Stamps are runs of equal versions, and a run too many enlarges every manifest."""
    sequence = RowVersionSequence.from_array(versions)
    again = decode_row_versions(encode_row_versions(sequence), len(versions))
    assert again == sequence
    assert again.to_array().tolist() == versions
    assert len(again.versions) == sum(
        1 for index, version in enumerate(versions) if index == 0 or versions[index - 1] != version
    )


@given(version_lists, st.data())
def test_parts_of_the_versions_decode_alone(versions: list[int], data: st.DataObject) -> None:
    """Readers of a few rows must not expand a million stamps."""
    sequence = RowVersionSequence.from_array(versions)
    start = data.draw(st.integers(0, len(versions)))
    stop = data.draw(st.integers(start, len(versions)))
    assert sequence.slice(start, stop).tolist() == versions[start:stop]
    some = st.lists(st.integers(0, len(versions) - 1), max_size=20)
    offsets = data.draw(some) if versions else []
    assert sequence.take(offsets).tolist() == [versions[offset] for offset in offsets]
    remaining = [version for index, version in enumerate(versions) if index not in offsets]
    assert sequence.without(offsets).to_array().tolist() == remaining
    whole = RowVersionSequence.concat([sequence, sequence])
    assert whole.to_array().tolist() == versions * 2


def test_every_span_starts_at_zero() -> None:
    """Readers count the members of spans, and a start would take up to five bytes a run."""
    data = encode_row_versions(RowVersionSequence([3, 2], [1, 7]))
    message = rowids_pb2.RowDatasetVersionSequence.FromString(data)
    assert [(value.span.range.start, value.span.range.end) for value in message.runs] == [
        (0, 3),
        (0, 2),
    ]


@given(st.integers(0, 60), st.integers(0, 63), st.integers(64, 200))
def test_many_runs_encode_as_protobuf(length_bits: int, version_bits: int, num_runs: int) -> None:
    """The bytes are assembled without an object per run, and must equal protobuf's."""
    lengths = [max(1, (1 << length_bits) // (index + 1)) for index in range(num_runs)]
    versions = [max(1, (1 << version_bits) - 1 - index % 2) for index in range(num_runs)]
    sequence = RowVersionSequence(lengths, versions)
    runs = zip(sequence.lengths.tolist(), sequence.versions.tolist(), strict=True)
    expected = message_of(*(run(version, range=span(0, length)) for length, version in runs))
    assert encode_row_versions(sequence) == expected


MANY = 400
RANGE = span(3, 9)


@pytest.mark.parametrize(
    "last",
    [
        run(7, range=RANGE),
        run(0, range=span(0, 0)),
        run((1 << 64) - 1, range=span((1 << 64) - 2, (1 << 64) - 1)),
        run(7, range_with_bitmap={"start": 0, "end": 3, "bitmap": b"\x05"}),
        run(7, sorted_array={"u16_array": {"base": 1, "offsets": bytes(range(200))}}),
    ],
)
def test_many_runs_decode_like_few(last: rowids_pb2.RowDatasetVersionRun) -> None:
    """Runs are decoded together if all are plain, and one by one otherwise."""
    plain = [run(number % 300, range=span(number, 2 * number + 1)) for number in range(MANY)]
    assert len(message_of(*plain)) > 2048
    read_together = row_versions._decode(message_of(*plain, last))
    parts = [row_versions._decode(message_of(value))[0] for value in [*plain, last]]
    joined = RowVersionSequence.concat(parts)
    assert read_together == (joined, joined.num_rows)


SPAN = wire.frame(1, RANGE.SerializeToString())
TWO_IDS = rowids_pb2.U64Segment(array={"u16_array": {"base": 1, "offsets": b"abcd"}})
ARRAY = TWO_IDS.SerializeToString()
VERSION = b"\x10\x07"


@pytest.mark.parametrize(
    "last",
    [
        wire.frame(1, SPAN) + VERSION + b"\x10\x08",
        wire.frame(1, SPAN) + wire.frame(1, SPAN) + VERSION,
        wire.frame(1, SPAN + ARRAY) + VERSION,
        wire.frame(1, ARRAY + SPAN) + VERSION,
        wire.frame(1, SPAN + wire.frame(1, b"\x10\x05")) + VERSION,  # which are merged
        wire.frame(1, wire.frame(1, RANGE.SerializeToString() + b"\x10\x05")) + VERSION,
        wire.frame(1, wire.frame(1, b"\x80\x01\x05" + RANGE.SerializeToString())) + VERSION,
    ],
)
def test_repeated_fields_are_read_like_protobuf(last: bytes) -> None:
    """The last one of several counts, which other writers may rely on."""
    plain = message_of(*(run(number, range=RANGE) for number in range(MANY)))
    data = plain + wire.frame(1, last)
    runs = rowids_pb2.RowDatasetVersionSequence.FromString(data).runs
    assert len(runs) == MANY + 1
    few = row_versions._decode(message_of(runs[-1]))
    sequence, num_rows = row_versions._decode(data)
    assert num_rows == 6 * MANY + few[1]
    assert sequence is not None
    assert int(sequence.to_array()[-1]) == runs[-1].version


@pytest.mark.parametrize(
    "damaged",
    [
        message_of(run(7, range=span(9, 3))),
        message_of(run(7, range=span((1 << 64) - 1, 5))),
        message_of(*[run(version, range=span(0, 1 << 63)) for version in (7, 8)]),
        message_of(run(7, range=RANGE))[:-1],
        message_of(run(7)),
        message_of(rowids_pb2.RowDatasetVersionRun(version=3)),
        message_of(rowids_pb2.RowDatasetVersionRun()),
        b"\x0a\x7f\x0a",
        b"\x0a",
        b"\x0f\x01",
    ],
)
def test_damage_after_many_runs_is_reported(damaged: bytes) -> None:
    """Many runs take a fast path, which must refuse what the plain one refuses."""
    plain = message_of(*(run(number, range=RANGE) for number in range(MANY)))
    with pytest.raises(CorruptDataError):
        decode_row_versions(plain + damaged, 6 * MANY + 6)


def test_absurd_row_counts_are_refused() -> None:
    """Sums of lengths in the fast path must not overflow and then match."""
    runs = [run(number, range=span(0, (1 << 32) - 1)) for number in range(MANY)]
    with pytest.raises(CorruptDataError, match="row versions"):
        decode_row_versions(message_of(*runs), 6)


def test_a_fragment_can_be_full() -> None:
    """Row offsets have 32 bits, so a fragment can have 2^32 rows, and no more."""
    for runs in 1, MANY:
        lengths = [1] * (runs - 1)
        spans = [*lengths, (1 << 32) - len(lengths)]
        data = message_of(*(run(at + 1, range=span(0, stop)) for at, stop in enumerate(spans)))
        assert decode_row_versions(data, 1 << 32).num_rows == 1 << 32
        more = data + message_of(run(9, range=span(0, 1)))
        with pytest.raises(CorruptDataError, match="has 4294967297 row versions"):
            decode_row_versions(more, (1 << 32) + 1)


def test_version_0_is_left_out() -> None:
    """No row has it, but protobuf would not write it, and equal sequences have equal bytes."""
    sequence = RowVersionSequence([1] * 100, [0, 1] * 50)
    expected = message_of(*(run(version, range=span(0, 1)) for version in [0, 1] * 50))
    assert encode_row_versions(sequence) == expected


def test_only_sizes_of_spans_count() -> None:
    """The format uses a segment of row ids for a span, where only its length has a meaning."""
    bitmap = rowids_pb2.U64Segment.RangeWithBitmap(start=7, end=15, bitmap=b"\x81")
    data = message_of(
        run(5, range=span(0, 3)),
        run(6, range=span(0, 3)),
        run(7, range_with_bitmap=bitmap),
        run(5, range=span(1000, 1001)),
    )
    assert decode_row_versions(data, 9).to_array().tolist() == [5, 5, 5, 6, 6, 6, 7, 7, 5]


def test_missing_sequences_read_as_version_1() -> None:
    """The specification defines missing stamps as version 1."""
    assert decode_row_versions(None, 3).to_array().tolist() == [1, 1, 1]
    assert decode_row_versions(None, 0).to_array().tolist() == []


def test_equal_neighbours_merge_into_one_run() -> None:
    """Empty runs are dropped."""
    sequence = RowVersionSequence([2, 0, 1, 1], [4, 9, 4, 5])
    assert (sequence.lengths.tolist(), sequence.versions.tolist()) == ([3, 1], [4, 5])
    assert RowVersionSequence.uniform(0, 3) == RowVersionSequence([], [])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (message_of(run(1, range=span(0, 4))), "4 row versions"),
        (message_of(run(1, range=span(0, 6))), "6 row versions"),
        (message_of(run(1, range=span(0, (1 << 64) - 1))), "row versions"),
        (message_of(run(1, range=span(6, 1)), run(1, range=span(0, 10))), "before it starts"),
        (message_of(run(1)), "an unknown kind"),
        (b"\x0a\x05", "not a RowDatasetVersionSequence"),
        (b"", "0 row versions"),
    ],
)
def test_misfit_row_versions_are_corrupt(data: bytes, what: str) -> None:
    """Shifted stamps would report changes of the wrong rows."""
    with pytest.raises(CorruptDataError, match=what):
        decode_row_versions(data, 5)


def test_any_bytes_are_read_or_refused() -> None:
    """Callers handle BadDataError only."""
    sound, num_read = encode_row_versions(RowVersionSequence.uniform(4, 1)), 0
    damaged = st.builds(
        lambda at, byte: sound[:at] + bytes([byte]) + sound[at + 1 :],
        st.integers(0, len(sound) - 1),
        st.integers(0, 255),
    )

    @given(st.binary(max_size=50) | damaged, st.integers(0, 20) | st.just(4))
    def read(data: bytes, num_rows: int) -> None:
        nonlocal num_read
        try:
            versions = decode_row_versions(data, num_rows)
        except BadDataError:
            return
        num_read += 1
        assert len(versions.to_array()) == num_rows

    read()
    assert num_read > 0


def test_invalid_offsets_and_lengths_are_refused() -> None:
    """Numpy would wrap negative offsets and return stamps of other rows."""
    sequence = RowVersionSequence.uniform(4, 1)
    for wrong in ([4], [-1]):
        with pytest.raises(InvalidInputError):
            sequence.take(wrong)
    assert sequence.slice(0, 4).tolist() == [1] * 4
    for start, stop in ((3, 5), (-1, 2), (3, 2)):
        with pytest.raises(InvalidInputError, match="are not within the 4 rows"):
            sequence.slice(start, stop)
    for lengths, versions in (([1], [1, 2]), ([-1], [1])):
        with pytest.raises(InvalidInputError):
            RowVersionSequence(lengths, versions)
    assert RowVersionSequence.from_array(np.array([], np.uint64)).num_rows == 0


def test_sequences_differ_in_lengths_or_versions() -> None:
    """An update that changes neither would leave the manifest as it is."""
    sequence = RowVersionSequence([2, 1], [1, 2])
    assert sequence == RowVersionSequence.from_array([1, 1, 2])
    for other in (
        RowVersionSequence([1, 2], [1, 2]),
        RowVersionSequence([2, 1], [1, 3]),
        [1, 1, 2],
    ):
        assert sequence != other
