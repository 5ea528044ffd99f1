"""The recipe that reads the change feed without a data source of Spark."""

import re
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[3] / "docs/guides/recipes/spark-3.5.md"


@pytest.mark.spark
@pytest.mark.essential
def test_recipe_for_spark_3_5_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark 3.5 has no other way to stream changes, and the recipe runs on every PySpark."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, RECIPE.name, "exec"), names)
    assert names["counts"] == {"insert": 4, "update_postimage": 1}
