"""Importing the package loads nothing that only some of its users need.

Each Python worker of Spark imports it again, so every job pays for it.
"""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import grimp
import pytest

import lance_stream

HEAVY = ("pandas", "pyarrow.dataset", "obstore", "botocore", "google.auth", "azure", "psycopg")


@pytest.mark.parametrize(
    ("module", "heavy"), [("lance_stream.spark", HEAVY), ("lance_stream", ("pyspark",))]
)
def test_imports_load_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    """Every Python worker of Spark pays for the import again."""
    code = f"import sys, {module}; print(*sorted({set(heavy)} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.stdout.split(), process.stderr) == ([], "")


def test_versions_agree_with_the_project() -> None:
    """Files state the writer's version, which must be that of the release."""
    root = Path(lance_stream.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert lance_stream.__version__ == project["version"]


_WITHOUT_METADATA = """
import importlib.metadata as metadata, sys

def nothing(name):
    raise metadata.PackageNotFoundError(name)

metadata.version = metadata.distribution = nothing
import lance_stream, pyarrow as pa
from lance_stream.cli import main
assert ".zip" in lance_stream.__file__, lance_stream.__file__
print(lance_stream.create_dataset(sys.argv[1], pa.table({"id": [1]})).version)
assert main.main(["show", sys.argv[1]]) == 0
assert main.main(["doctor"]) in (0, 1)
"""


def test_a_zip_without_metadata_works(tmp_path: Path) -> None:
    """Spark ships the package in this form to workers and drivers with `--py-files`."""
    package = Path(lance_stream.__file__).parent
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as zipped:
        for path in package.rglob("*.py"):
            zipped.write(path, path.relative_to(package.parent))
    process = subprocess.run(
        [sys.executable, "-c", _WITHOUT_METADATA, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "package.zip")},
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert "ok       Spark: PySpark 4" in process.stdout


def test_modules_import_no_circles() -> None:
    """Imports in functions count as well, since they hide a circle from the reader."""
    graph = grimp.build_graph("lance_stream", cache_dir=None)
    modules = set(graph.modules)
    while True:  # modules that import none of the remaining ones are in no circle
        leaves = {
            module
            for module in modules
            if not graph.find_modules_directly_imported_by(module) & modules
        }
        if not leaves:
            break
        modules -= leaves
    assert modules == set()
