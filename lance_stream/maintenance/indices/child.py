"""Builds indices in a process of its own, with the lowest priority.

pylance's threads would compete with the stream's, do not survive a fork, cannot be interrupted, and
keep a process from ending. A child can be killed at any time: what it leaves is not named by any
version. It gets a pickled request by its standard input, with settings that may be secret, and
answers with pylance's transaction, or with an error.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from lance_stream.errors import IndexBuildError, LanceStreamError
from lance_stream.maintenance.indices.building import BuildRequest, build
from lance_stream.storage.locations import open_store
from lance_stream.table.transaction import Transaction, decode_transaction, encode_transaction

_SECONDS_BETWEEN_LOOKS: Final = 0.1
_SHOWN: Final = 1000
_PROGRAM: Final = "from lance_stream.maintenance.indices.child import main; main()"


class StoppedChildError(Exception):
    """The child was stopped before its end."""


def build_in_child(
    request: BuildRequest,
    store_uri: str,
    storage_options: Mapping[str, Any],
    stop: threading.Event,
) -> Transaction | None:
    """Build indices in another process; see `building.build`.

    Args:
        request: What to build.
        store_uri: The table's directory, as we have it.
        storage_options: Our settings of its store.
        stop: Once it is set, the child is killed.

    Raises:
        StoppedChildError: The event was set.
        LanceStreamError: As `build`; or the child died, or cannot be started.
    """
    given = pickle.dumps((request, store_uri, dict(storage_options)))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError as error:
        raise IndexBuildError(
            f"the process that brings indices up to date cannot be started: {error}. The table is "
            "unchanged"
        ) from error
    with child:
        try:
            answer, said = _communicate(child, given, stop)
        finally:
            child.kill()
    try:
        transaction, problem = pickle.loads(answer)
    except (EOFError, pickle.UnpicklingError):
        raise IndexBuildError(
            f"the process that brings indices up to date ended with code {child.returncode}. The "
            f"table is unchanged. It said last: {said[-_SHOWN:].decode(errors='replace')}"
        ) from None
    if problem is not None:
        raise problem
    return None if transaction is None else decode_transaction(transaction)


def _communicate(
    child: "subprocess.Popen[bytes]", given: bytes, stop: threading.Event
) -> tuple[bytes, bytes]:
    unsent: bytes | None = given
    while not stop.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(unsent, timeout=_SECONDS_BETWEEN_LOOKS)
        unsent = None
    raise StoppedChildError


def main() -> None:
    """Answer the request on the standard input."""
    os.nice(19)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    answer: tuple[bytes | None, Exception | None]
    try:
        request, store_uri, storage_options = pickle.loads(sys.stdin.buffer.read())
        built = build(request, open_store(store_uri, storage_options))
        answer = None if built is None else encode_transaction(built), None
    except LanceStreamError as error:
        answer = None, error
    with os.fdopen(out, "wb") as stream:
        stream.write(pickle.dumps(answer))
    os._exit(0)  # pylance's threads need not end first
