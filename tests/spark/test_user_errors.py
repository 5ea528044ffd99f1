"""Errors without the walk through this package, and with everything else."""

import os
import traceback
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.spark import lance_sink
from lance_stream.spark.session.user_errors import (
    message_first,
    without_our_frames,
    without_traceback,
)

HIDING = "SPARK_HIDE_TRACEBACK"


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker of Spark."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
    monkeypatch.setenv(HIDING, "")


def fail() -> None:
    error = InvalidInputError("no")
    error.add_note("in this file")
    raise error


@pytest.mark.parametrize("wrap", [without_traceback, without_our_frames])
def test_notes_stay(wrap: Any) -> None:
    with pytest.raises(InvalidInputError, match="no") as caught:
        wrap(fail)()
    assert caught.value.__notes__ == ["in this file"]
    assert caught.value.__cause__ is None


def test_a_traceback_begins_with_the_message_and_has_none_of_our_frames() -> None:
    with pytest.raises(InvalidInputError, match="no") as caught:
        message_first(fail)()
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.startswith("lance_stream.errors.InvalidInputError: no\nin this file\n")
    assert ", in fail" not in shown


def test_spark_shows_no_traceback_of_what_it_calls() -> None:
    with pytest.raises(InvalidInputError):
        without_traceback(fail)()
    assert os.environ[HIDING] == "1"


def test_a_user_who_catches_an_error_of_the_sink_sees_the_next_traceback() -> None:
    """A worker of Spark Connect runs all batches of a query, with the user's code."""
    with pytest.raises(InvalidInputError, match="a sink is called with a micro-batch"):
        lance_sink("/tables/t")(None, 0)  # type: ignore[arg-type]  # what is refused
    assert os.environ[HIDING] == ""
