"""Lets indices serve each filter that they can, however little that saves; and tells how many."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lance_stream.errors import NotFoundError
from lance_stream.expressions.predicates import Expression
from lance_stream.read import scan
from lance_stream.read.indices import candidates, segments

_candidate_rows = candidates.candidate_rows


def _pylance_named_the_root(error: BaseException, table: Any) -> bool:
    """Return whether pylance has compacted a branch, and named the root for the index it made.

    It writes the index into the branch's directory and keeps the base path of the old one; it
    cannot open the index itself.
    """
    name = re.search(r"_indices/([0-9a-f-]{36})/", str(error))
    return (
        isinstance(error, NotFoundError)
        and name is not None
        and Path(table.uri, "_indices", name[1]).is_dir()
    )


@contextmanager
def eager_indices(*, may_fail: bool = False) -> Iterator[Counter[str]]:
    """Let indices serve, also in small tables and for filters that match most rows.

    Args:
        may_fail: Whether an index may turn out to be unusable.

    Yields:
        How many filters were "served" by an index, and how many were "scanned"; and how often an
        index "failed".
    """
    counts: Counter[str] = Counter()

    def counted(table: Any, predicate: Expression) -> Any:
        rows = _candidate_rows(table, predicate)
        counts["scanned" if rows is None else "served"] += 1
        return rows

    def noted(error: BaseException, table: Any) -> None:
        counts["failed"] += 1
        if not may_fail and not _pylance_named_the_root(error, table):
            raise AssertionError(f"an index of {table.uri} is not used") from error

    with (
        patch.object(candidates, "MIN_COVERED_ROWS", 0),
        patch.object(candidates, "MAX_READ_PART", 1e9),
        patch.object(candidates, "MAX_MATCHED_PART", 1e9),
        patch.object(candidates, "candidate_rows", counted),
        patch.object(candidates, "log_failure", noted),
        patch.object(segments, "log_failure", noted),
    ):
        yield counts


@contextmanager
def no_indices() -> Iterator[None]:
    """Let filters be evaluated on all rows."""
    with patch.object(scan, "_candidate_rows", lambda *_: None):
        yield
