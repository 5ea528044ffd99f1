"""Filters that indices serve."""

import pytest

from tests.histories.checks.filters import LITERALS
from tests.histories.engine import replay
from tests.histories.model import KEY, KINDS, SPECIAL_KINDS
from tests.histories.steps import step

CONDITIONS = [f"{KEY} >= 1 AND {KEY} < 3", f"{KEY} IN (0, 3)", f"NOT ({KEY} < 2)"]


def test_indices_serve_filters_of_indexed_columns() -> None:
    """Without an index the check of filters would compare scans with scans."""
    outcome = replay(
        [
            step(
                "create",
                file_version="2.2",
                columns=[["a", "real"]],
                rows={0: {"a": "nan"}, 1: {"a": 1.5}, 2: {"a": None}, 3: {"a": "-inf"}},
                way="rows",
            ),
            step("create_index", column=KEY, kind=3),
            step("random_filters", version=2, conditions=CONDITIONS),
        ]
    )
    assert outcome.error is None
    assert outcome.counts["filters served by indices"] == 2 * len(CONDITIONS)
    assert outcome.counts["filters compared with pylance"] == len(CONDITIONS)


@pytest.mark.parametrize(
    "kind", sorted({**KINDS, **SPECIAL_KINDS}.keys() - {"list", "vector", "uuid", "pair"})
)
def test_every_ordered_kind_has_literals(kind: str) -> None:
    """A kind without literals would silently never be filtered."""
    assert kind in LITERALS
