"""When an index is brought up to date."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lance_stream import IndexCoverage, InvalidInputError, NotFoundError
from lance_stream.environment import MACHINE
from lance_stream.maintenance.indices.background import BackgroundIndexing
from lance_stream.maintenance.indices.refresh_policy import (
    DEFAULT,
    MIN_ROWS_FOR_FRACTION,
    RefreshPolicy,
    as_refresh_policy,
)
from lance_stream.maintenance.indices.update_indices import names_to_build, needs_work

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def index(indexed: int | None, missing: int | None, minutes: float | None = 0) -> IndexCoverage:
    built = None if minutes is None else NOW - timedelta(minutes=minutes)
    return IndexCoverage("i", "BTREE", ("id",), indexed, missing, 1, built, 1, 0)


@pytest.mark.parametrize(
    ("policy", "state", "is_due"),
    [
        (DEFAULT, index(99_000, 1000), True),
        (DEFAULT, index(99_001, 999), False),
        (DEFAULT, index(200_000, 1999), False),
        (DEFAULT, index(0, MIN_ROWS_FOR_FRACTION), True),
        (DEFAULT, index(0, MIN_ROWS_FOR_FRACTION - 1), False),
        (DEFAULT, index(10, 0, 999), False),
        (DEFAULT, index(None, None), False),
        (RefreshPolicy(rows=5), index(100, 5), True),
        (RefreshPolicy(rows=5), index(None, 5), True),
        (RefreshPolicy(fraction=1.0), index(None, MIN_ROWS_FOR_FRACTION), True),
        (RefreshPolicy(rows=5), index(100, 4, 999), False),
        (RefreshPolicy(age=timedelta(minutes=10)), index(100, 1, 10), True),
        (RefreshPolicy(age=timedelta(minutes=10)), index(100, 1, 9), False),
        (RefreshPolicy(age=timedelta(minutes=10)), index(100, 0, 99), False),
        (RefreshPolicy(age=timedelta(minutes=10)), index(100, 1, None), True),
        (RefreshPolicy(age=timedelta(minutes=10)), index(100, 0, None), False),
        (RefreshPolicy(0.5, 5, timedelta(minutes=1)), index(100, 5), True),
    ],
)
def test_one_limit_suffices_for_refresh(
    policy: RefreshPolicy, state: IndexCoverage, is_due: bool
) -> None:
    """Limits by fraction, rows and age guard different workloads, and the first one reached
    counts.
    """
    assert (policy.reason(state, NOW) is not None) == is_due
    assert bool(policy.due([state], NOW)) == is_due


@pytest.mark.parametrize(
    ("policy", "states", "seconds"),
    [
        (RefreshPolicy(age=timedelta(minutes=10)), [index(100, 1, 7), index(100, 1, 9)], 60.0),
        (RefreshPolicy(age=timedelta(minutes=10)), [index(100, 0, 7), index(None, None, 7)], None),
        (RefreshPolicy(rows=5), [index(100, 1, 7)], None),
        (RefreshPolicy(age=timedelta(minutes=10)), [index(1, 1, None), index(1, 1, 9)], 60.0),
        (RefreshPolicy(age=timedelta(minutes=10)), [index(100, 1, 99)], 0.0),
    ],
)
def test_next_due_time_is_computed(
    policy: RefreshPolicy, states: list[IndexCoverage], seconds: float | None
) -> None:
    """The thread sleeps until the earliest index becomes due, or without limit of age until the
    next batch.
    """
    assert policy.seconds_until_due(states, NOW) == seconds


def test_threads_look_again_when_due() -> None:
    """A thread that wakes late leaves an index out of date, and one that wakes early wakes for
    nothing.
    """
    now = round(NOW.timestamp()) * 10**9 + 999
    indexing = BackgroundIndexing(
        RefreshPolicy(age=timedelta(minutes=10)),
        environment=replace(MACHINE, now_nanos=lambda: now),
    )
    assert indexing._seconds_until_due([index(100, 1, 7), index(100, 1, 9)]) == 60.0
    assert indexing._seconds_until_due([index(100, 0, 7)]) is None
    assert not indexing._reasons([index(100, 1, 9)])
    assert indexing._reasons([index(100, 1, 10)])


def test_reasons_name_the_index_and_rows() -> None:
    """Operators see in the log why a build has started."""
    assert DEFAULT.due([index(97_500, 2500)], NOW) == {"i": "i lacks 2500 rows (2.5%)"}


@pytest.mark.parametrize(
    ("argument", "policy"),
    [
        (None, None),
        (False, None),
        (True, DEFAULT),
        ({"rows": 7, "age": "2 hours"}, RefreshPolicy(rows=7, age=timedelta(hours=2))),
        (RefreshPolicy(rows=3), RefreshPolicy(rows=3)),
        ({"rows": 1}, RefreshPolicy(rows=1)),
        ({"fraction": 0.05}, RefreshPolicy(fraction=0.05)),
        ({"fraction": 1, "rows": None}, RefreshPolicy(fraction=1.0)),
    ],
)
def test_mappings_state_a_refresh_policy(argument: Any, policy: RefreshPolicy | None) -> None:
    """Spark's options and Python's arguments use plain values, which must mean the same policy."""
    assert as_refresh_policy(argument) == policy


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("auto", "keep_indices_fresh must be True, or a mapping"),
        ({}, "keep_indices_fresh must be True, or a mapping"),
        (1, "keep_indices_fresh must be True, or a mapping"),
        ({"rows": None}, "has no limit: .*None.* Set one"),
        ({"share": 0.1}, "has no limit 'share'; it has: fraction, rows, age"),
        ({"fraction": 0}, "must be above 0 and at most 1"),
        ({"fraction": 1.01}, "must be above 0 and at most 1"),
        ({"fraction": "a half"}, "must be above 0 and at most 1"),
        ({"fraction": 5}, "must be above 0 and at most 1"),
        ({"fraction": True}, "must be above 0 and at most 1"),
        ({"rows": 0}, "an integer of at least 1"),
        ({"rows": 2.5}, "an integer of at least 1"),
        ({"age": "10"}, "'age' of keep_indices_fresh: '10' is not an age"),
        ({"age": "0 s"}, "'age' of keep_indices_fresh: the age '0 s' is not positive"),
        ({"age": 0}, "'age' of keep_indices_fresh: 0 is not an age"),
    ],
)
def test_invalid_limits_are_refused(argument: Any, message: str) -> None:
    """A misspelt or impossible limit would mean an index that is never refreshed."""
    with pytest.raises(InvalidInputError, match=message):
        as_refresh_policy(argument)


@pytest.mark.parametrize(
    ("indexed", "missing", "fraction"),
    [(None, 5, None), (5, None, None), (None, None, None), (0, 0, 1.0), (0, 3, 0.0), (3, 1, 0.75)],
)
def test_coverage_is_a_share(
    indexed: int | None, missing: int | None, fraction: float | None
) -> None:
    """An index of no rows lacks none."""
    assert index(indexed, missing).fraction == fraction


@pytest.mark.parametrize(
    ("kind", "missing", "num_segments", "expected"),
    [
        ("BTREE", 0, 1, False),
        ("BTREE", 0, 2, True),
        ("BTREE", 1, 1, True),
        ("BTREE", None, 1, True),
        ("IVF_PQ", 0, 1, False),
        ("IVF_PQ", 0, 2, False),
        ("IVF_PQ", 1, 2, True),
    ],
)
def test_segments_and_missing_rows_need_work(
    kind: str, missing: int | None, num_segments: int, expected: bool
) -> None:
    """Vector indices may have several segments; the others find old values in them."""
    state = replace(index(9, missing), kind=kind, num_segments=num_segments)
    assert needs_work(state) == expected
    assert names_to_build([state], None) == (("i",) if expected else ())
    is_vector = kind.startswith("IVF")
    retrained = names_to_build([state], ["i"], retrain=True)
    assert retrained == (("i",) if expected or is_vector else ())


def test_unknown_indices_are_named() -> None:
    """A table without indices has none to choose from."""
    for states, existing in (([], "none"), ([index(1, 1)], "'i'")):
        with pytest.raises(
            NotFoundError, match=f"no index 'x'; the table's indices are: {existing}"
        ):
            names_to_build(states, ["x"])
