import numpy as np
import pyarrow as pa
import pytest

from lance_stream.keys.key_filter import KeyFilter
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
