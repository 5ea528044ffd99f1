"""SQL expressions mean what they mean in Spark, whichever door they come in by."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_stream
from lance_stream.cli import main as program
from lance_stream.errors import InvalidInputError
from lance_stream.spark import lance_sink, register
from lance_stream.spark.jobs.arrow_jobs import settings
from lance_stream.spark.writer.delete_conditions import resolve_delete_condition
from tests.arrow_frames import frame_of
from tests.expressions.against_spark import run

pytestmark = pytest.mark.spark

TABLE = pa.table(
    {
        "id": pa.array(range(12), pa.int64()),
        "s": [
            "CORP\\bob",
            "corpbob",
            "10%",
            "10",
            "it's",
            'say "x"',
            "",
            None,
            "a\tb",
            "é",
            "É",
            "b",
        ],
        "f": pa.array(
            [0.1, float("nan"), None, -0.0, 1e20, 3.5, 7, 8, 9, 10, 11, 2**24], pa.float32()
        ),
        "big": pa.array([2**53 + number for number in range(12)], pa.int64()),
    }
)

CONDITIONS = [
    r"s = 'CORP\\bob' OR s LIKE '10\%'",
    's = "it\'s" OR `s` = \'say "x"\'',
    "lower(s) = 'é' OR s RLIKE 'a.b'",
    "f > 9 AND NOT isnan(F)",
    "big > f AND big > 9007199254740996.0",
    "CAST(f AS string) = '1.0E20' OR coalesce(s, 'none') = 'none'",
]


@pytest.mark.since_spark("4.0")  # the values are those of ANSI mode, 4.0's default
@pytest.mark.essential(cases=5)
@pytest.mark.parametrize("seed", range(5))
def test_random_expressions_match_spark(spark: Any, seed: int) -> None:
    """`python -m tests.expressions.against_spark --count 20000` is the long form of this test."""
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        findings = run(spark, seed=random.Random(seed).randrange(1 << 30), count=40)
    assert findings.differences == []
    assert findings.counts["equal"] > 20
    assert findings.counts["refused"] < 12


@pytest.mark.essential(cases=len(CONDITIONS))
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_entry_point_selects_sparks_rows(
    spark: Any, tmp_path: Path, condition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users move a condition from a query to a delete and on to a sink, and it must select the
    same rows everywhere.
    """
    frame = frame_of(spark, TABLE)
    chosen = sorted(row.id for row in frame.where(condition).collect())
    others = sorted(set(range(12)) - set(chosen))
    assert 0 < len(chosen) < 12

    def ids(ds: lance_stream.Dataset) -> Sequence[int]:
        return sorted(ds.to_table(["id"])["id"].to_pylist())

    ds = lance_stream.create_dataset(tmp_path / "t", TABLE)
    assert sorted(ds.to_table(["id"], filter=condition)["id"].to_pylist()) == chosen
    assert program.main(["query", ds.uri, "--where", condition, "--columns", "id", "--json"]) == 0
    output = capsys.readouterr().out
    assert sorted(map(int, re.findall(r'"id": ?(\d+)', output))) == chosen
    updated = ds.update({"s": "'*'"}, condition)
    assert sorted(updated.to_table(["id"], filter="s = '*'")["id"].to_pylist()) == chosen
    assert ids(updated.restore(ds.version).delete(condition)) == others

    aside = tmp_path / "checked"
    sink = lance_sink(str(aside), app_id="a", expect=condition, bad_rows="quarantine")
    sink(frame, 0)
    assert ids(lance_stream.open_dataset(aside)) == chosen

    deleting = tmp_path / "deleting"
    rules = {"mode": "upsert", "on": "id"}
    lance_sink(str(deleting), app_id="a", delete_when=condition, **rules)(frame, 0)
    assert ids(lance_stream.open_dataset(deleting)) == others
    register(spark)
    by_format = tmp_path / "by_format"
    writer = frame.write.format("lance").mode("append").options(**rules, deleteWhen=condition)
    if "CAST" in condition or "big > f" in condition:
        return  # what settings could change is refused
    writer.save(str(by_format))
    assert ids(lance_stream.open_dataset(by_format)) == others


def test_metadata_reveals_char_columns(spark: Any, tmp_path: Path) -> None:
    """Spark's schema says STRING, and only the metadata of the field tells that it is a CHAR."""
    pq.write_table(pa.table({"op": ["d  ", "u  "]}), tmp_path / "rows.parquet")
    where = f"USING parquet OPTIONS (path '{tmp_path}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW padded (op CHAR(3)) {where}")
    frame = spark.table("padded")
    assert frame.where("op = 'd'").count() == 1
    with pytest.raises(InvalidInputError, match="a CHAR column, to whose length Spark pads"):
        resolve_delete_condition("op = 'd'", frame.schema, case_sensitive=False)
