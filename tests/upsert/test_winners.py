"""Which of several rows of a key is applied."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import InvalidInputError
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.upsert.winners import newest_rows, only_rows


@pytest.mark.floors
def test_without_a_sequence_keys_are_unique() -> None:
    """Which of two rows is newer is unknown, and the order of rows in a DataFrame is not
    reproducible.
    """
    keys = [pa.array([5, 6, 5, 6, 6, 7])]
    with pytest.raises(InvalidInputError, match=r"2 keys .* \(k=5\) 2 times.*sequence_by"):
        only_rows(["k"], keys, KeyLookup(keys))
    keys = [pa.array([2, 1])]
    assert only_rows(["k"], keys, KeyLookup(keys)).tolist() == [0, 1]


def none_of(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return that no row of a batch deletes its key."""
    return np.zeros(batch.num_rows, np.bool_)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), unique=True, max_size=20))
def test_newest_rows_of_keys_win(rows: list[tuple[int, int]]) -> None:
    """A batch of changes has several rows of a key, in any order."""
    batch = pa.record_batch(
        [
            pa.array([row[0] for row in rows], pa.int64()),
            pa.array([row[1] for row in rows], pa.int8()),
        ],
        ["k", "seq"],
    )
    winners = newest_rows(batch, ["k"], KeyLookup([batch.column("k")]), "seq", none_of(batch))
    winning_rows = [rows[position] for position in winners.tolist()]
    newest = {key: max(seq for other, seq in rows if other == key) for key, _ in rows}
    assert dict(winning_rows) == newest
    assert len(winning_rows) == len(newest)


@pytest.mark.floors
def test_equal_sequences_need_equal_rows() -> None:
    """Equal sequences with different rows have no newest one, while a repeated delivery does no
    harm.
    """
    batch = pa.record_batch(
        {"k": [1, 1, 1, 2], "seq": [3, 3, 1, 1], "x": [float("nan"), float("nan"), 0.0, 0.0]}
    )
    lookup = KeyLookup([batch.column("k")])
    assert newest_rows(batch, ["k"], lookup, "seq", none_of(batch)).tolist()[1:] == [3]
    differs = batch.set_column(2, "x", pa.array([1.0, 2.0, 0.0, 0.0]))
    with pytest.raises(InvalidInputError, match=r"\(k=1\) have the same 'seq', 3"):
        newest_rows(differs, ["k"], lookup, "seq", none_of(batch))


@pytest.mark.floors
def test_rows_without_sequence_are_refused() -> None:
    """A null sequence could be the oldest or the newest, and neither guess is safe."""
    batch = pa.record_batch({"k": [1, 2], "seq": pa.array([1, None])})
    with pytest.raises(InvalidInputError, match=r"1 rows have no 'seq'.*\(k=2\)"):
        newest_rows(batch, ["k"], KeyLookup([batch.column("k")]), "seq", none_of(batch))


def test_examples_are_repeated_keys() -> None:
    """The message must not name the first key of the batch, which may occur once."""
    keys = [pa.array([7, 5, 6, 5, 5])]
    with pytest.raises(InvalidInputError, match=r"1 keys .* example \(k=5\) 3 times"):
        only_rows(["k"], keys, KeyLookup(keys))


@pytest.mark.floors
@pytest.mark.parametrize("deletes", [[False, True, False], [True, False, False]])
def test_deletes_win_ties_only_on_request(deletes: list[bool]) -> None:
    """A change stream orders a delete after other changes of its instant; elsewhere a tie between
    a delete and a row has no newest one.
    """
    batch = pa.record_batch({"k": [1, 1, 2], "seq": [3, 3, 9]})
    lookup, deleting = KeyLookup([batch.column("k")]), np.array(deletes)
    winners = newest_rows(batch, ["k"], lookup, "seq", deleting, deletes_win=True)
    assert winners.tolist() == [deletes.index(True), 2]
    with pytest.raises(InvalidInputError, match=r"\(k=1\) have the same 'seq', 3"):
        newest_rows(batch, ["k"], lookup, "seq", deleting)


@pytest.mark.parametrize("deletes_win", [False, True])
def test_deletes_win_ties_only(deletes_win: bool) -> None:
    """A delete that is older than another change of its key loses to it."""
    rows = [(1, 5, False), (1, 4, True), (2, 3, False), (2, 7, True), (3, 1, True), (3, 9, False)]
    rows += [(4, 8, True), (4, 2, False), (5, 6, False), (5, 9, False), (5, 8, True)]
    for turned in rows, rows[::-1]:
        keys, sequences, deletes = zip(*turned, strict=True)
        batch = pa.record_batch({"k": list(keys), "seq": list(sequences)})
        lookup = KeyLookup([batch.column("k")])
        winners = newest_rows(
            batch, ["k"], lookup, "seq", np.array(deletes), deletes_win=deletes_win
        )
        newest = sorted(turned[row] for row in winners.tolist())
        assert newest == [(1, 5, False), (2, 7, True), (3, 9, False), (4, 8, True), (5, 9, False)]
