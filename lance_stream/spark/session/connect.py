"""Checks that a client of Spark Connect makes before it sends a sink to the server.

The client pickles the sink when the query is started, and the server calls the copy in a process of
its own. Spark does not report the query's id there, so a sink needs an app id; and a callback that
cannot be pickled cannot be called. The client can check both before the first batch.
"""

import os
from collections.abc import Callable
from typing import Any

from pyspark.cloudpickle import dumps
from pyspark.sql.utils import is_remote

from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.user_errors import WORKERS_PREFIX


def is_client() -> bool:
    """Return whether this process is a client of Spark Connect, not a process of its server."""
    return is_remote() and not any(name.startswith(WORKERS_PREFIX) for name in os.environ)


def check_has_app_id(app_id: str | None) -> None:
    """Raise if a client sends a sink without an app id.

    Raises:
        InvalidInputError: The server could not tell which stream its batches belong to.
    """
    if app_id is None and is_client():
        raise InvalidInputError(
            "through Spark Connect a sink needs an app id, lance_sink(uri, app_id='orders'): Spark "
            "does not report the query's id there, so the first batch would fail"
        )


def check_can_be_sent(on_commit: Callable[[Any], object] | None) -> None:
    """Raise if a client gives a sink a callback that cannot be sent to the server.

    Raises:
        InvalidInputError: It cannot be pickled.
    """
    if on_commit is None or not is_client():
        return
    try:
        dumps(on_commit)  # type: ignore[no-untyped-call]  # PySpark has no types there
    except Exception as error:
        raise InvalidInputError(
            f"on_commit={on_commit!r:.200} cannot be sent to the server of Spark Connect, whose "
            f"process calls it ({error}). Use a function that does not depend on this process. To "
            "collect metrics in this process, watch the table: metrics.watch(uri)"
        ) from None
