import numpy as np
import pyarrow as pa
import pytest

from lance_stream.keys.key_filter import KeyFilter, are_exact, key_words


def test_the_filter_has_few_false_positives() -> None:
    """False positives cost time, and a false negative would insert a duplicate key."""
    dice = np.random.default_rng(1)
    keys = dice.choice(1 << 40, 5000, replace=False)
    others = dice.choice(1 << 40, 100_000)
    rows = np.concatenate([others, keys])
    candidates, words = KeyFilter(key_words([pa.array(keys)])).candidates([pa.array(rows)])
    assert words.tolist() == rows[candidates].tolist()
    assert np.isin(np.arange(100_000, 105_000), candidates).all()
    assert len(candidates) < 5000 + 100_000 // 64
    assert bool((np.diff(candidates) > 0).all())


@pytest.mark.floors
def test_without_keys_there_are_no_candidates() -> None:
    """An empty batch is a valid batch, and numpy fails for some operations on empty arrays."""
    nothing = KeyFilter(key_words([pa.array([], pa.int8())]))
    rows, words = nothing.candidates([pa.array([1, 2], pa.int8())])
    assert (rows.tolist(), words.tolist()) == ([], [])


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
