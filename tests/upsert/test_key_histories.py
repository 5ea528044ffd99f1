"""Random upserts, each by one process, in parts and by a model: see `key_histories`."""

from collections.abc import Mapping

import pytest

from tests.upsert.key_histories import KEYS, SEQUENCES, Kind, run, values_as


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.floors
@pytest.mark.parametrize("seed", range(8))
def test_both_upserts_match_the_model(seed: int) -> None:
    """Random batches with any types must have the same result in one process and in parts."""
    history = run(seed, 4)
    assert history.num_rows


@pytest.mark.parametrize("kinds", [KEYS, SEQUENCES])
def test_generators_cover_every_type(kinds: Mapping[str, Kind]) -> None:
    """A generator that never draws a type would leave it untested without a sign."""
    for name, kind in kinds.items():
        assert kind.types, name
        for arrow in kind.types:
            assert len(values_as(kind, arrow)) > 1, (name, arrow)
