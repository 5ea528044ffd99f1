"""Rows as DuckDB and polars read them."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from tests.histories.checks.rows import condition_of_rows
from tests.histories.duckdb_tables import DuckDBTable
from tests.histories.life import Life, check_rows, plain_rows
from tests.histories.model import KEY
from tests.histories.steps import Choices, DoesNotFit, check


@check(weight=1)
def same_rows_for_engines(life: Life, choose: Choices) -> None:
    """DuckDB and polars read the same rows, all of them and by a condition."""
    line = life.line(choose)
    if not line.is_for_lancedb or line.branch is not None:
        raise DoesNotFit("what these engines cannot read")
    condition, keys = condition_of_rows(line, choose)
    polars: Any = importlib.import_module("polars")
    scan, table = polars.scan_lance(line.root), DuckDBTable(line.root)
    readers: Mapping[str, tuple[Callable[[], pa.Table], Callable[[], pa.Table]]] = {
        "duckdb": (
            lambda: table.sql("SELECT * FROM {t}"),
            lambda: table.sql(f"SELECT {KEY} FROM {{t}} WHERE {condition}"),
        ),
        "polars": (
            lambda: scan.collect().to_arrow(),
            lambda: scan.filter(polars.sql_expr(condition)).collect().to_arrow(),
        ),
    }
    name = choose.one_of("engine", [*readers])
    read_all, read_some = readers[name]
    rows = plain_rows(read_all())
    uuids = [column.name for column in line.now.columns if column.kind == "uuid"]
    for row in rows:  # DuckDB gives them as text
        row |= {n: row[n].replace("-", "") for n in uuids if row[n] is not None}
    check_rows(rows, line.now)
    assert sorted(read_some()[KEY].to_pylist()) == sorted(keys), condition
    life.counts[f"reads by {name}"] += 1
