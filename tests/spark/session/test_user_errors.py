"""Errors without the walk through this package, and with everything else."""

import os
import traceback
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.spark import cleanup_table, compact_table, lance_sink, read_changes
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


@pytest.mark.parametrize("function", [compact_table, cleanup_table, read_changes])
def test_forgotten_sessions_are_named(function: Any) -> None:
    """Functions without Spark begin with the location, so people forget the session here."""
    with pytest.raises(InvalidInputError, match="is the Spark session, not 't'"):
        function("t")


@pytest.mark.parametrize("wrap", [without_traceback, without_our_frames])
def test_notes_survive_hidden_tracebacks(wrap: Any) -> None:
    """Notes name the file or row that is wrong, and the user needs them more than the frames."""
    with pytest.raises(InvalidInputError, match="no") as caught:
        wrap(fail)()
    assert caught.value.__notes__ == ["in this file"]
    assert caught.value.__cause__ is None


def test_tracebacks_begin_with_the_message() -> None:
    """Spark truncates long errors, so the message has to come before frames that do not help the
    user.
    """
    with pytest.raises(InvalidInputError, match="no") as caught:
        message_first(fail)()
    text = "".join(traceback.format_exception(caught.value))
    assert text.startswith("lance_stream.errors.InvalidInputError: no\nin this file\n")
    assert ", in fail" not in text


def test_spark_hides_tracebacks_it_relays() -> None:
    """PySpark formats the traceback itself, and an environment variable is the only way to
    suppress it.
    """
    with pytest.raises(InvalidInputError):
        without_traceback(fail)()
    assert os.environ[HIDING] == "1"


def test_caught_errors_keep_later_tracebacks() -> None:
    """One worker of Spark Connect runs all batches of a query along with the user's code, whose
    errors need their traceback.
    """
    with pytest.raises(InvalidInputError, match="a sink is called with a micro-batch"):
        lance_sink("/tables/t")(None, 0)  # type: ignore[arg-type]  # what is refused
    assert os.environ[HIDING] == ""
