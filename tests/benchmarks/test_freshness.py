import numpy as np
import pytest

from benchmarks.freshness import Arrivals


def arrivals(*batches: tuple[float, list[int]]) -> Arrivals:
    """Rows of a source that began at 100 s and makes 1000 a second."""
    source = Arrivals()
    for now, numbers in batches:
        stamps = np.array([100 + number / 1000 for number in numbers])
        source.batches.append((now, stamps, np.array(numbers, np.int64)))
    return source


def test_ages_begin_when_rows_are_emitted() -> None:
    """The source emits a row at the end of its second, whenever in that second it was created."""
    ages = arrivals((101.3, [0, 250, 999]), (102.3, [1000, 1999])).ages(0, 1000)
    assert (ages.p50, ages.p95) == (pytest.approx(0.3), pytest.approx(0.3))
    assert ages.p50_of_timestamp == pytest.approx(1.05)
    assert (ages.num_rows, ages.num_batches) == (5, 2)


def test_warm_up_batches_do_not_count() -> None:
    """The first batches include the start of Spark, and would dominate the latency."""
    assert arrivals((190, [0]), (201.5, [100_000])).ages(200, 1000).num_rows == 1
    with pytest.raises(RuntimeError, match="measure longer"):
        arrivals((190, [0])).ages(200, 1000)
