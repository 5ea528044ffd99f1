"""The macros for dbt, rendered as dbt renders them, and their SQL run by Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_stream
from lance_stream.spark import register

jinja2 = pytest.importorskip("jinja2")

MACROS = (Path(__file__).parent.parent.parent / "examples/dbt/macros/lance.sql").read_text()


def render(sql: str, **of_dbt: Any) -> str:
    return str(jinja2.Template(MACROS + sql, undefined=jinja2.StrictUndefined).render(**of_dbt))


def rendered(sql: str, **of_dbt: Any) -> str:
    return " ".join(render(sql, **of_dbt).split())


@pytest.mark.parametrize(
    ("macro", "sql"),
    [
        ("lance_table('a/b.lance')", "lance_table('a/b.lance')"),
        ("lance_table('t', 3)", "lance_table('t', 3)"),
        ("lance_table('t', 'gold')", "lance_table('t', 'gold')"),
        ("lance_changes('t', 2)", "lance_changes('t', 2)"),
        ("lance_changes('t', 2, 5)", "lance_changes('t', 2, 5)"),
        ("lance_changes('t', 2, 5, net=true)", "lance_changes('t', 2, 5, 'netChanges')"),
        ("lance_changes('t', 2, net=true)", "lance_changes('t', 2, NULL, 'netChanges')"),
    ],
)
def test_macros_render_table_function_calls(macro: str, sql: str) -> None:
    """dbt shows only the SQL, so optional arguments must become the right positions."""
    assert rendered("{{ " + macro + " }}") == sql


def test_quotation_marks_are_escaped() -> None:
    """A path with a quotation mark must not end the literal, nor allow an injection."""
    macro = "{{ lance_table(uri, version) }}"
    sql = rendered(macro, uri="o'hara\\", version="'); DROP TABLE t; --")
    assert sql == r"lance_table('o\'hara\\', '\'); DROP TABLE t; --')"


def test_models_remember_their_newest_version() -> None:
    """The model is the only place where dbt keeps what it has read."""

    class Result:
        columns = ((7,),)

    requests: list[str] = []

    def run_query(sql: str) -> Result:
        requests.append(sql)
        return Result()

    def of_dbt(is_incremental: bool) -> dict[str, Any]:
        return {
            "execute": True,
            "is_incremental": lambda: is_incremental,
            "run_query": run_query,
            "this": "db.model",
        }

    assert rendered("{{ lance_version_of(this) }}", **of_dbt(False)) == "0"
    assert rendered("{{ lance_version_of(this) }}", **of_dbt(True)) == "7"
    assert requests == ["SELECT max(_commit_version) FROM db.model"]


@pytest.mark.spark
@pytest.mark.nightly
def test_incremental_models_merge_changes(spark: SparkSession, tmp_path: Path) -> None:
    """One row per row id is needed, since a merge fails on duplicates."""
    register(spark)
    uri = str(tmp_path / "it's.lance")
    ds = lance_stream.create_dataset(uri, pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
    model: dict[int, tuple[Any, ...]] = {}

    def run() -> int:
        after = max((row[2] for row in model.values()), default=0)
        macro = (
            "SELECT id, v, _rowid, _commit_version, _deleted FROM {{ lance_newest_rows(uri, n) }}"
        )
        rows = spark.sql(render(macro, uri=uri, n=after)).collect()
        assert len({row._rowid for row in rows}) == len(rows)  # or a merge would fail
        model.update(
            {row._rowid: (row.id, row.v, row._commit_version, row._deleted) for row in rows}
        )
        return len(rows)

    def live() -> list[tuple[Any, ...]]:
        return sorted(row[:2] for row in model.values() if not row[3])

    assert run() == 3
    assert run() == 0  # nothing new, and no error
    ds = ds.upsert(pa.table({"id": [3, 4], "v": ["C", "d"]}), on="id").delete("id = 1")
    ds = ds.upsert(pa.table({"id": [1, 4], "v": ["again", "D"]}), on="id").delete("id = 2")
    assert run() == 5
    assert live() == [(1, "again"), (3, "C"), (4, "D")]
    assert run() == 0
