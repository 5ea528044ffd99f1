"""Some random histories of queries with state; `make soak` runs them for ten more minutes."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.stateful_queries import KINDS, PROCESS_KILLED, STORES, run_history
from tests.sampling import ALL_CASES

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HISTORIES = [
    ("groups, changed", "rocksdb 2", ["after the sink"]),
    ("windows", "rocksdb 2", ["commit lost"]),
    ("distinct rows", "hdfs", ["older copy", "older copy"]),
    ("rows of distinct ids", "rocksdb", ["commit lost"]),
]
MORE = [
    ("rows", "hdfs", ["offsets lost"]),
    ("groups, all", "hdfs", ["commit lost"]),
    ("joined", "rocksdb", ["after the sink"]),
    ("transformWithState", "rocksdb 2", ["after the sink"]),
    ("groups, changed", "rocksdb", [PROCESS_KILLED, PROCESS_KILLED, PROCESS_KILLED]),
]


@pytest.mark.parametrize(("kind", "store", "faults"), HISTORIES + (MORE if ALL_CASES else []))
def test_rows_arrive_once_after_query_failures(
    spark: Any, tmp_path: Path, kind: str, store: str, faults: list[str]
) -> None:
    """Windows, joins and deduplication keep state, which must agree with what the sink has
    committed.
    """
    result = run_history(spark, tmp_path, kind, store, 1, faults)
    assert result["replays"] or result["planned again"]


def test_histories_cover_every_kind_and_store() -> None:
    """A kind of query that is added but never run would seem tested."""
    assert {kind for kind, _, _ in HISTORIES + MORE} == set(KINDS)
    assert {store for _, store, _ in HISTORIES} == set(STORES)
