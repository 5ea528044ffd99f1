"""Importing the package loads nothing that only some of its users need.

Each Python worker of Spark imports it again, so every job pays for it.
"""

import subprocess
import sys

import pytest

HEAVY = ("pandas", "pyarrow.dataset", "obstore", "botocore", "google.auth", "azure", "psycopg")


@pytest.mark.parametrize(
    ("module", "heavy"), [("lance_stream.spark", HEAVY), ("lance_stream", ("pyspark",))]
)
def test_an_import_loads_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted({set(heavy)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == ([], "")
