"""Shows errors that a user can act on without the frames of this package.

Spark passes an error of a Python source, writer or foreachBatch function on as the text of its
traceback: in Spark's message our sentence would come last, below the frames of a dozen modules that
the user does not know. Spark's own setting for it
(`spark.sql.execution.pyspark.udf.hideTraceback.enabled`) is off by default, and hides the user's
tracebacks as well.

The full traceback of such an error goes to the log "lance_stream.spark.errors" at level DEBUG.
"""

import logging
import os
import re
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from py4j.protocol import Py4JJavaError

from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    TableReplacedError,
    UnsupportedFeatureError,
)

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("lance_stream.spark.errors")

_FOR_USERS: Final = (
    InvalidInputError,
    NotFoundError,
    TableReplacedError,
    UnsupportedFeatureError,
)
"""Errors whose message has the cause and the remedy; others may need the traceback."""

WORKERS_PREFIX: Final = "PYTHON_WORKER_FACTORY_"
"""Prefix of environment variables that only Spark's workers have."""


def without_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that Spark calls: errors for users are raised without their traceback."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except _FOR_USERS as error:
            _log_traceback()
            _hide_traceback_in_worker()
            raise error.with_traceback(None) from None

    return wrapper


def without_our_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that users call: errors for them are raised without our part of a traceback.

    Their own part stays, and so do the tracebacks of their own errors later: they may catch this
    one, in a worker that lives on.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except _FOR_USERS as error:
            _log_traceback()
            raise error.with_traceback(None) from None

    return wrapper


def message_first(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that Spark calls by py4j: errors for users begin with their message.

    Spark shows the text of the whole traceback, and the frames of py4j and PySpark in it cannot be
    taken out. But a traceback begins with its cause; so the cause is the same error, which has no
    frames of its own. As with `without_our_frames`, our part of the traceback is left out.

    If the query is stopped meanwhile, the error is short, too. Spark 4.3 looks for the words in
    `_STOPPED` by a pattern that recurses for each character after them: the trace of a Java error
    there ends its thread by a StackOverflowError, and fills a terminal with a thousand lines.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except _FOR_USERS as error:
            _log_traceback()
            raise error.with_traceback(None) from copy(error)
        except Py4JJavaError as error:
            if not _INTERRUPTION.search(str(error)):
                raise
            _log_traceback()
            raise RuntimeError(_STOPPED) from None

    return wrapper


_INTERRUPTION: Final = re.compile(
    r"java\.lang\.InterruptedException|SPARK_JOB_CANCELLED.* was stopped"
)
_STOPPED: Final = (
    "the query was stopped while a batch was written; the next run repeats the batch "
    "(py4j.protocol.Py4JJavaError: An error occurred while calling Spark: "
    "java.lang.InterruptedException)"
)


def _log_traceback() -> None:
    _log.debug("traceback of an error that users see without it", exc_info=True)


def _hide_traceback_in_worker() -> None:
    """Let a worker of Spark pass on the message only; it ends after any error."""
    if any(name.startswith(WORKERS_PREFIX) for name in os.environ):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
