"""Words and hashes of keys: equal for equal keys only, or as rarely for others as stated."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.keys.key_words import are_exact, first_words, hash_keys, key_words, words_of
from tests.keys.test_batch_keys import keys_and_rows, rows_of


@pytest.mark.parametrize(
    ("columns", "exact"),
    [
        ([pa.array([1], pa.int64())], True),
        ([pa.array([1], pa.uint8())], True),
        ([pa.array([True])], True),
        ([pa.array([1], pa.timestamp("us"))], True),
        ([pa.array([1], pa.int8()), pa.array([1], pa.int8())], False),
        ([pa.array(["a"])], False),
        ([pa.array([b"12345678"], pa.binary(8))], False),
        ([pa.array([1], pa.decimal128(9, 0))], False),
    ],
)
def test_eight_byte_numbers_are_exact_words(columns: list[pa.Array], exact: bool) -> None:
    """Exact words need no second comparison, and a type that is wrongly called exact would merge
    keys.
    """
    assert are_exact(columns) is exact


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([3, -1])],
        [pa.array([True, False])],
        [pa.array(["a", "b"])],
        [pa.array(["a", "b"]).dictionary_encode()],
        [pa.array([3, -1]), pa.array(["a", "b"])],
    ],
)
def test_first_words_are_those_indexed(columns: list[pa.Array]) -> None:
    """A large upsert looks up ranges of them in the index, which is sorted by its own words."""
    assert first_words(columns, 3).tolist() == words_of(columns, (3, 4)).words.tolist()
    assert first_words(columns, 4).tolist() != [0, 0]


@pytest.mark.parametrize(
    "texts",
    [
        ["12345678", "12345679", "22345678"],
        ["1234567", "123456", "", "\0", "\0\0", "x1234567"],
        ["short", "12345678 and more", "12345678 and m0re", "1"],
        ["12345678", "1234567812345678", "123456781234567812345678"],
        [f"user-{at:07d}" for at in range(50)],
    ],
)
def test_words_distinguish_strings_at_any_offset(texts: list[str]) -> None:
    """Words are computed from raw buffers, so slices, short strings and zero bytes could be
    confused.
    """
    words = key_words([pa.array(texts)])
    assert len(np.unique(words)) == len(texts)
    among_others = pa.array(["before", *texts, "behind it", None])
    moved = key_words([among_others.slice(1, len(texts)).cast(pa.large_binary())])
    assert moved.tolist() == words.tolist()


@given(keys_and_rows(), st.integers(0, 3))
def test_only_equal_keys_share_hashes(
    drawn_keys: tuple[list[pa.Array], list[pa.Array]], start: int
) -> None:
    """Conflicts between writers are found by these hashes, so slices and types must not influence
    them.
    """
    batch, _ = drawn_keys
    sliced = [column.slice(start) for column in batch]
    pairs = set(zip(hash_keys(sliced).tolist(), rows_of(sliced), strict=True))
    assert len({hashed for hashed, _ in pairs}) == len({key for _, key in pairs}) == len(pairs)
    assert hash_keys(batch)[start:].tolist() == hash_keys(sliced).tolist()


def test_hashes_never_change() -> None:
    """The hashes are part of transactions, so writers of different releases
    have to agree on them.
    """
    # They stand in transactions: writers of several releases have to agree on them.
    keys = [pa.array([1, -5]), pa.array(["", "a longer key than eight bytes"])]
    assert hash_keys(keys).tolist() == [3268114855643547390, 13674178207171167827]


def test_two_seeds_have_nothing_in_common() -> None:
    """Two indices with correlated hashes would have collisions in common."""
    columns = [pa.array([f"{number}" for number in range(1000)]), pa.array(range(1000))]
    for some in (columns, columns[:1], columns[1:]):
        one, other = (hash_keys(some, seed) for seed in (3 << 60 | 77, 5 << 58 | 9))
        assert len(set(one.tolist()) | set(other.tolist())) == 2000
        assert hash_keys(some).tolist() == hash_keys(some, 0).tolist()


ENDS = [b"", b"\0", b"\0\0", b"\1", b"\1\0", b"\0\1"]


def test_different_lengths_have_different_words() -> None:
    """A key's length must not cancel out with its bytes, whatever the seeds are."""
    starts = [b"", b"a", b"b", b"c", b"ab", b"bb", b"bc", b"abcd", b"bbcd", b"1234567", b"0234567"]
    starts += [b"abcdefgh", b"bbcdefgh", b"abcdefghi", b"bbcdefghi", b"ibcdefghabcdefgh"]
    every = sorted({start + end for start in starts for end in ENDS})
    for columns in ([pa.array(every)], [pa.array(range(len(every))), pa.array(every)]):
        for seed in range(1, 400):
            words = words_of(columns, (seed, seed << 40))
            assert words.others is not None
            assert len(set(words.words.tolist())) == len(set(words.others.tolist())) == len(every)


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(3), pa.decimal128(20, 0), pa.date32()])
def test_empty_keys_need_no_bytes(kind: pa.DataType) -> None:
    """Other libraries may omit the buffers of an array without values."""
    empty = pa.Array.from_buffers(kind, 0, [None, None])
    assert hash_keys([empty]).tolist() == []
    assert key_words([empty]).tolist() == []
