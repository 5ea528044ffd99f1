import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.oracle
@pytest.mark.slow
def test_the_benchmark_of_files_gives_a_ratio_for_every_version_and_direction() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.files", "--rows", "3000", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    ratios = re.findall(r"([\d.]+)x pylance, +([\d.]+)x parquet", done.stdout)
    assert len(ratios) == 9, done.stdout
    assert all(float(ratio) > 0 for pair in ratios for ratio in pair)
