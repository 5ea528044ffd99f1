"""Nothing that the driver holds grows with the rows of a batch, or the fragments of a table."""

import pytest

from benchmarks.driver_memory import TARGET_MB, run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        pytest.param("narrow", 10_000_000, marks=pytest.mark.spark),
        # a fifth of what the benchmark takes, and more than the driver could hold
        pytest.param("wide", 20_000, marks=pytest.mark.spark),
        ("fragments", 100_000),
    ],
)
def test_the_driver_stays_small(case: str, rows: int) -> None:
    """A driver whose memory grows with the batch or the number of fragments would fail on exactly
    the largest tables.
    """
    samples = run(case, rows)
    assert len(samples) > 2
    assert max(row["python"] for row in samples) < TARGET_MB
