"""The notebooks of examples/notebooks: in a kernel of Jupyter, and stored without outputs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import need

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NEEDED = {"vectors-and-search": ["lancedb", "wordllama"]}
"""The modules that a notebook needs beside those of the tests."""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.recipes
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    """A kernel runs an event loop, in which the code of a page was never tested."""
    nbclient: Any = need("nbclient")
    nbformat: Any = need("nbformat")
    need("ipykernel")
    for module in NEEDED.get(notebook.stem, []):
        need(module)
    cells = nbformat.read(notebook, nbformat.NO_CONVERT)
    client = nbclient.NotebookClient(
        cells, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    executed = [cell for cell in cells.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in executed)


def test_stored_notebooks_have_no_outputs() -> None:
    """Outputs would contain paths and times of the machine that wrote them."""
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
        assert len({cell["id"] for cell in cells}) == len(cells)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_readme_and_site_link_to_notebooks(notebook: Path) -> None:
    """Readers never find a notebook without a link to it."""
    path = f"examples/notebooks/{notebook.name}"
    assert f"]({path})" in (ROOT / "README.md").read_text()
    assert f"../{path})" in (ROOT / "docs" / "index.md").read_text()
    assert f"notebooks/{notebook.stem}.md" in (ROOT / "mkdocs.yml").read_text()
