"""What the checks of names cost for tables of many columns: a time per column, not per pair."""

import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pytest

from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.projections import project
from lance_stream.upsert.incoming import check_names
from lance_stream.upsert.rules import UpsertRules
from lance_stream.write.casting import check_castable

WIDE: Final = pa.schema([(f"column {number}", pa.int8()) for number in range(12_000)])
FIELDS: Final = from_arrow(WIDE)

MAX_CPU_SECONDS: Final = 1.0
"""With a comparison of each pair of names the quickest of these takes twice as long."""


@pytest.mark.parametrize(
    "check",
    [
        lambda: from_arrow(WIDE),
        lambda: project(FIELDS, WIDE.names),
        lambda: check_castable(WIDE, WIDE),
        lambda: check_names(WIDE, WIDE, UpsertRules(("column 7",))),
    ],
    ids=["schema", "projection", "cast", "upsert"],
)
def test_wide_tables_check_in_linear_time(check: Callable[[], object]) -> None:
    """Comparing every name with every other takes minutes for tables with tens of thousands of
    columns.
    """
    start = time.process_time()
    check()
    assert time.process_time() - start < MAX_CPU_SECONDS
