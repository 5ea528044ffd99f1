"""Random upserts, each by one process, in parts and by a model: see `key_histories`."""

from collections.abc import Mapping

import pytest

from tests.upsert.key_histories import KEYS, SEQUENCES, Kind, run, values_as


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.floors
@pytest.mark.parametrize("seed", range(8))
def test_both_ways_of_upsert_match_the_model(seed: int) -> None:
    made = run(seed, 4)
    assert made.num_rows


@pytest.mark.parametrize("kinds", [KEYS, SEQUENCES])
def test_every_type_can_occur(kinds: Mapping[str, Kind]) -> None:
    for name, kind in kinds.items():
        assert kind.types, name
        for arrow in kind.types:
            assert len(values_as(kind, arrow)) > 1, (name, arrow)
