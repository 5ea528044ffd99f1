"""Random conditions whose meaning pylance and Spark share select the same rows in both of us.

docs/reference/expressions.md lists what means something else to pylance; such conditions are not
asked here.
"""

import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import evaluate_predicate, parse_predicate
from tests.expressions.against_spark import Expressions, nasty_rows

pytestmark = pytest.mark.oracle

COLUMNS: Final = ["rid", "b", "i8", "i16", "i32", "i64", "f32", "f64", "d2", "s", "t", "x", "dt"]

DIFFERS: Final = re.compile(
    r"[\"\\]"  # names and strings
    r"|[-/%+*] ?\(?[a-z(]|(cast|round|trunc|abs)\(|::"  # types of results, and overflow
    r"|\[|array|size|get\(|\|\||RLIKE|==|<=>|\d[LDF]\b|BD\b|\br'|X'|TRIM|FROM|left|ILIKE"  # syntax
    r"|\b(st|ts|tn|l|ls|m|js|d18|d0|d37)\b"  # columns that are not asked
    r"|isnan|concat|coalesce|nullif",  # what they give for null, and the common type of two numbers
    re.IGNORECASE,
)


def test_equivalent_conditions_select_the_same_rows(tmp_path: Path) -> None:
    """A table's filters should not change when its reader does."""
    table = nasty_rows().select(COLUMNS)
    theirs = lance.write_dataset(table, tmp_path / "t")
    (batch,) = table.to_batches()
    expressions = Expressions(random.Random(3), max_depth=2)
    num_equal = 0
    for _ in range(1500):
        text = expressions.truth(0)
        if DIFFERS.search(text):
            continue
        try:
            filtered = batch.filter(evaluate_predicate(parse_predicate(text, batch.schema), batch))
            rows = theirs.to_table(columns=["rid"], filter=text)
        except (InvalidInputError, NotFoundError, ValueError, OSError):
            continue  # one of us refuses it
        assert filtered["rid"].to_pylist() == rows["rid"].to_pylist(), text
        num_equal += 1
    assert num_equal > 100


@pytest.mark.parametrize(
    ("condition", "ours", "theirs"),
    [
        ("negative = 0.0", [0, 1], [0, 1]),
        ("negative = zero", [0, 1], [1]),
        ("negative < zero", [], [0]),
        ("utc <= TIMESTAMP '2020-03-02 05:00:00'", [0], [0]),
        ("new_york = utc", [0, 1], [0, 1]),
        ("new_york <= TIMESTAMP '2020-03-02 05:00:00'", [0], [0, 1]),
        ("new_york <= TIMESTAMP '2020-03-02 05:00:00+00:00'", [0], [0, 1]),
        ("new_york = no_zone", [0, 1], []),
    ],
)
def test_zeros_and_zones_differ_as_documented(
    tmp_path: Path, condition: str, ours: list[int], theirs: list[int]
) -> None:
    """A reader of the reference must learn which filters select other rows in pylance."""
    times = [datetime(2020, 3, 2, hour, tzinfo=UTC) for hour in (5, 9)]
    naive = [time.replace(tzinfo=None) for time in times]
    rows = pa.table(
        {
            "id": [0, 1],
            "negative": [-0.0, 0.0],
            "zero": [0.0, 0.0],
            "utc": pa.array(times, pa.timestamp("us", "UTC")),
            "new_york": pa.array(times, pa.timestamp("us", "America/New_York")),
            "no_zone": pa.array(naive, pa.timestamp("us")),
        }
    )
    ds = lance_stream.create_dataset(tmp_path / "t", rows)
    assert ds.to_table(["id"], condition)["id"].to_pylist() == ours
    by_pylance = lance.dataset(tmp_path / "t").to_table(["id"], filter=condition)
    assert by_pylance["id"].to_pylist() == theirs
