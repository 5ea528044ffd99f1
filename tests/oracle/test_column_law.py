"""A column is its id wherever it is read, over random histories of nested columns.

For longer: python -m tests.oracle.column_histories --minutes 10
"""

from collections.abc import Sequence

import pytest

from lance_stream.schema import identity
from lance_stream.schema.fields import Field
from lance_stream.spark.versions import HAS_READ_LIMITS
from tests.oracle.column_histories import run

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 has no read limits"),
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.essential
def test_the_law_holds_in_short_histories(seed: int) -> None:
    """A column matched by its name would take values of a dropped or renamed one."""
    assert run(seed, num_steps=5) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_the_law_holds_in_long_histories(seed: int) -> None:
    """Some confusions need many renames, drops and casts in one table."""
    assert run(seed, num_steps=12) > 8


def is_noticed(seeds: range) -> bool:
    for seed in seeds:
        try:
            run(seed, num_steps=10)
        except (AssertionError, KeyError):
            return True
    return False


@pytest.mark.slow
def test_matching_columns_by_name_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law proves something only if it notices the mistake that it excludes."""

    def by_names(before: Sequence[Field], after: Sequence[Field], **_: bool) -> identity.Ids:
        return identity.same_fields(before, after, ids_match=False)

    monkeypatch.setattr("lance_stream.feed.ancestry.same_fields", by_names)
    assert is_noticed(range(20, 26))
