"""Whose clock decides about the age of files."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lance_stream.environment import MACHINE
from lance_stream.snapshot import store_clock
from lance_stream.snapshot.store_clock import TOLERATED_NANOS, with_store_clock
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.storage.store import StoredFile

NOW = 1_800_000_000 * 10**9
TOLERATED = TOLERATED_NANOS // 10**9


class ClockStore(MemoryStore):
    """A store whose clock shows another time, and which may hide new files."""

    seconds = 0
    is_late = False

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        files = super().list_files(folder, limit)
        modified = NOW / 1e9 + self.seconds
        files = [] if self.is_late else [file._replace(modified=modified) for file in files]
        return [StoredFile(f"{folder}/another", 1, 0.0), *files]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClockStore]:
    monkeypatch.setattr(store_clock, "_machine_nanos", lambda: NOW)
    store_clock._ahead.clear()
    yield ClockStore("/clocks/t")
    store_clock._ahead.clear()


@pytest.mark.parametrize(
    ("seconds", "may_be_behind", "shift", "warning"),
    [
        (0, False, 0, None),
        (-TOLERATED, False, 0, None),
        (-TOLERATED - 1, False, -TOLERATED - 1, "61 s ahead of the clock"),
        (-TOLERATED - 1, True, -TOLERATED - 1, "61 s ahead of the clock"),
        (TOLERATED, False, 0, None),
        (TOLERATED + 1, False, TOLERATED + 1, "61 s behind the clock"),
        (TOLERATED + 1, True, 0, "61 s behind the clock"),
    ],
)
def test_wrong_clocks_are_replaced(
    store: ClockStore,
    caplog: pytest.LogCaptureFixture,
    seconds: int,
    may_be_behind: bool,
    shift: int,
    warning: str | None,
) -> None:
    """Files of active writers must not look old enough to delete."""
    store.seconds = seconds
    environment: Any = replace(MACHINE, now_nanos=lambda: NOW)
    with caplog.at_level(logging.WARNING):
        clock = with_store_clock(store, environment, may_be_behind=may_be_behind)
    assert clock.now_nanos() == NOW + shift * 10**9
    assert (clock is environment) == (shift == 0)
    assert [record.message[:50] for record in caplog.records] == (
        [] if warning is None else [f"the clock of this machine is {warning}"[:50]]
    )
    assert store.list() == []


def test_hidden_files_tell_no_time(store: ClockStore) -> None:
    """A listing that lacks the new file says nothing about the clocks."""
    store.is_late = True
    environment = replace(MACHINE, now_nanos=lambda: NOW)
    assert with_store_clock(store, environment) is environment
