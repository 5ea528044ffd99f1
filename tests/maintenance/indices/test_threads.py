"""What the thread that updates indices waits for, and what ends it."""

import logging
import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest

from lance_stream.maintenance.compaction.background import StoppedError, begin_work, end_work
from lance_stream.maintenance.indices import background
from lance_stream.maintenance.indices.background import BackgroundIndexing
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy

ANY_ROW = RefreshPolicy(rows=1)


class Checks:
    """Stands in for a sink's indexing: each check returns when to check again."""

    def __init__(self, *seconds: float | None) -> None:
        self.seconds = list(seconds)

    def _has_ended(self, _stop: threading.Event, _seconds: float | None) -> bool:
        return not self.seconds

    def _run_if_due(self, _open_newest: Any, _stop: threading.Event) -> float | None:
        return self.seconds.pop(0)


class News:
    """Stands in for the event of a batch, which may come while the thread waits."""

    def __init__(self, *, comes: bool = False) -> None:
        self.comes, self.waits = comes, []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        assert len(self.waits) < 10
        return self.comes

    def clear(self) -> None:
        pass


def run(checks: list[Any], news: News) -> None:
    background._run(checks, Mock(), threading.Event(), news)  # type: ignore[arg-type]  # as much of an event as is used


@pytest.mark.parametrize(
    ("seconds", "comes", "waits"),
    [
        ((None, None), False, []),
        ((0.0, None), False, [0.0]),
        ((30.0, None), False, [30.0]),
        ((60.0, None), False, [60.0]),
        ((150.0, None), False, [60.0, 60.0, 30.0]),
        ((150.0, None), True, [60.0]),
        ((150.0, 30.0, None), True, [60.0, 30.0]),
    ],
)
def test_threads_wait_until_work_is_due(
    seconds: tuple[float | None, ...], comes: bool, waits: list[float]
) -> None:
    """A batch wakes them earlier; long waits are interrupted, since the sink may be gone."""
    checks, news = Checks(*seconds), News(comes=comes)
    run([checks], news)
    assert news.waits == waits
    assert checks.seconds == []


@pytest.mark.parametrize("seconds", [30.0, 150.0])
def test_threads_end_with_their_sink(seconds: float) -> None:
    """Nobody else refers to the indexing while the thread waits."""
    news = News()
    run([Checks(seconds, None)], news)
    assert len(news.waits) == 1


def test_stops_end_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause may last for hours after a long round."""
    monkeypatch.setattr(background, "_POLL_SECONDS", 0.01)
    indexing, stop = BackgroundIndexing(ANY_ROW), threading.Event()
    indexing._not_before = time.monotonic() + 0.05
    indexing._pause(stop)
    assert time.monotonic() >= indexing._not_before
    stop.set()
    indexing._pause(stop)
    indexing._not_before += 5
    with pytest.raises(StoppedError):
        indexing._pause(stop)
    indexing._skip_pauses.set()
    indexing._pause(stop)


def test_stops_end_waits_for_compactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction may take minutes, and the query has ended."""
    monkeypatch.setattr(background, "_POLL_SECONDS", 0.01)
    indexing, stop = BackgroundIndexing(ANY_ROW), threading.Event()
    table = Mock()
    table.store.uri = "memory://a table/that is compacted"
    monkeypatch.setattr(indexing, "_attempt", lambda *_: "an outcome")
    assert indexing._round(lambda: table, stop) == "an outcome"
    assert begin_work(table.store.uri)
    stop.set()
    try:
        with pytest.raises(StoppedError):
            indexing._round(lambda: table, stop)
    finally:
        end_work(table.store.uri)


@pytest.mark.parametrize("cause", ["a stop", "the end of the program", "the store"])
def test_failures_after_a_stop_are_silent(
    cause: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop interrupts the round wherever it is, which is no reason to alarm anyone."""
    indexing, stop = BackgroundIndexing(ANY_ROW), threading.Event()
    ended = Mock(is_alive=Mock(return_value=False))

    def fail() -> Any:
        if cause == "a stop":
            stop.set()
        if cause == "the end of the program":
            monkeypatch.setattr(background.threading, "main_thread", lambda: ended)
        raise OSError("the connection was closed")

    with caplog.at_level(logging.INFO):
        seconds = indexing._run_if_due(fail, stop)
    (record,) = caplog.records
    if cause == "the store":
        assert seconds is not None
        assert seconds > 0
        assert record.levelno == logging.WARNING
    else:
        assert seconds is None
        assert record.message == "the update of indices was stopped"
