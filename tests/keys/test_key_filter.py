import numpy as np
import pyarrow as pa
import pytest

from lance_stream.keys.key_filter import _ROWS_AT_ONCE, MAX_KEYS, KeyFilter
from lance_stream.keys.key_words import key_words


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
    ("num_keys", "num_bits"),
    [
        *((0, 10), (1, 10), (64, 10), (65, 11), (128, 11), (129, 12)),
        *((1 << 18, 22), ((1 << 18) + 1, 22), (MAX_KEYS, 22)),
    ],
)
def test_tables_have_slots_per_key(num_keys: int, num_bits: int) -> None:
    """At least sixteen, as a fuller table lets more rows pass, but never too many for a cache."""
    key_filter = KeyFilter(np.arange(num_keys, dtype=np.uint64))
    sizes = [len(key_filter._is_in_first), len(key_filter._is_in_other)]
    assert sizes == [1 << num_bits] * 2
    assert int(key_filter._shift) == 64 - num_bits


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("row", [0, 7, _ROWS_AT_ONCE - 1])
def test_rows_after_missing_keys_are_found(part: int, row: int) -> None:
    """Most parts of a table have no row with a key, and all later parts are searched, too."""
    rows = np.zeros(4 * _ROWS_AT_ONCE, np.int64)
    rows[part * _ROWS_AT_ONCE + row] = 5
    candidates, words = KeyFilter(key_words([pa.array([5])])).candidates([pa.array(rows)])
    assert candidates.tolist() == [part * _ROWS_AT_ONCE + row]
    assert words.tolist() == [5]
