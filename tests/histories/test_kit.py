"""The kit itself: it finds what is wrong, shrinks it, and replays what it has recorded."""

from collections import Counter
from typing import Any

import pytest

from lance_stream.dataset import Dataset
from lance_stream.errors import NotFoundError
from tests.histories.engine import MODULES, as_test, make_life, replay, shrink
from tests.histories.paths import PATHS, counted, missing
from tests.histories.second_process import second_process
from tests.histories.steps import REGISTRY, Step, step
from tests.histories.thresholds import THRESHOLDS, lowered

SMALL = step("create", file_version="2.2", columns=[["a", "int64"]], rows={0: {"a": 1}}, way="rows")


def test_equal_seeds_play_equal_lives() -> None:
    """A seed is all that a failure in another process needs."""
    first, second = make_life(5, 8), make_life(5, 8)
    assert first.error is None
    assert first.steps == second.steps
    assert replay(first.steps).steps == first.steps


def test_lost_rows_are_noticed_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the steps that show the fault should remain of a long life."""
    delete = Dataset.delete

    def one_less(ds: Dataset, condition: str) -> Any:
        return delete(ds, "id = -1" if condition.startswith("id IN") else condition)

    monkeypatch.setattr(Dataset, "delete", one_less)
    life = [
        SMALL,
        step("append", rows={1: {"a": 2}, 2: {"a": None}, 3: {"a": 4}}, by=["we"]),
        step("compact", size=7, by=["we"]),
        step("valid"),
        step("delete", where=[0, 2, 3], by=["cold"]),
    ]
    shrunk = shrink(replay(life), seconds=30)
    assert [entry.name for entry in shrunk.steps] == ["create", "delete"]
    assert shrunk.steps[-1] == step("delete", where=[0], by=["we"])
    exec_free = as_test(shrunk)
    assert "step(\"delete\", where=[0], by=['we'])," in exec_free


def test_unsuitable_steps_are_skipped() -> None:
    """Shrinking removes steps, so any part of a life must be a life."""
    outcome = replay([SMALL, step("drop_column", name="b", by=["we"]), step("valid")])
    assert outcome.error is None
    assert [entry.name for entry in outcome.steps] == ["create", "valid"]


def test_consumers_lose_nothing_in_a_cleanup() -> None:
    """A consumer that dies before it has recorded anything begins where it began before."""
    outcome = replay(
        [
            SMALL,
            step(
                "consuming_replica",
                limits={"rows": 1, "size_bytes": None, "versions": None},
                deaths=[True],
                **{"stays behind": True},
            ),
            step("delete", where="all", by=["we"]),
            step("append", rows={1: {"a": 2}}, by=["we"]),
            step("cleanup", retain=1, by="we", watched=[]),
            step(
                "consuming_replica",
                limits={"rows": 1, "size_bytes": None, "versions": None},
                deaths=[True, False],
            ),
        ]
    )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.counts["consuming_replica"] == 2


def test_a_second_process_writes_and_fails() -> None:
    """Its rows are read here, and its failure must fail the life, with the location in the
    notes.
    """
    append = step("append", rows={1: {"a": 2}}, by=["process"])
    outcome = replay([SMALL, append, step("delete", where=[0], by=["process"])])
    assert outcome.error is None
    assert outcome.counts["by process"] == 2
    with pytest.raises(NotFoundError) as caught:
        second_process({}).run(lambda ds: ds.checkout(7), "memory://x/t")
    assert "in the second process" in caught.value.__notes__[-1]


def test_every_module_registers_something() -> None:
    """A module that is not imported would silently test nothing."""
    homes = Counter(registered.function.__module__ for registered in REGISTRY.values())
    assert homes.keys() == {f"tests.histories.{name}" for name in MODULES}


def test_every_path_and_limit_exists() -> None:
    """They are named as text, so renaming a function or constant would drop them silently."""
    counts: Counter[str] = Counter()
    with lowered({name: values[0] for name, values in THRESHOLDS.items()}), counted(counts):
        assert missing(counts) == [*PATHS]


def test_recorded_choices_are_plain_data() -> None:
    """Printed and pasted, they are the same."""
    for recorded in make_life(11, 8).steps:
        assert eval(repr(dict(recorded.choices))) == dict(recorded.choices)
        assert isinstance(recorded, Step)
