"""Builds indices in a child process with the lowest priority.

pylance's threads would compete with the stream's, do not survive a fork, cannot be interrupted, and
prevent a process from ending. A child can be killed at any time, since no version names its files.
It receives a pickled request on its standard input, because settings may be secret, and answers
with pylance's transaction or an error. It ends with its parent, and is the first process that the
system kills when memory is short.
"""

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lance_stream.errors import IndexBuildError, LanceStreamError
from lance_stream.maintenance.indices.building import BuildRequest, Built, build
from lance_stream.storage.locations import open_store
from lance_stream.table.operations.transaction import decode_transaction, encode_transaction

_log = logging.getLogger("lance_stream.indices")

_POLL_SECONDS: Final = 0.1
_PARENT_POLL_SECONDS: Final = 1.0
_MAX_OUTPUT_BYTES: Final = 1000
_PROGRAM: Final = "from lance_stream.maintenance.indices.child import main; main()"


class StoppedChildError(Exception):
    """The child was stopped before it answered."""


class ChildDiedError(IndexBuildError):
    """The child died before it answered."""


def build_in_child(
    request: BuildRequest,
    store_uri: str,
    storage_options: Mapping[str, Any],
    stop: threading.Event,
) -> Built:
    """Build indices in another process; see `building.build`.

    Args:
        request: What to build.
        store_uri: The table's directory, in the form of this library.
        storage_options: This library's settings of the store.
        stop: The child is killed once it is set.

    Raises:
        StoppedChildError: The event was set.
        ChildDiedError: The child was killed, or crashed.
        LanceStreamError: As `build`; or the child cannot be started.
    """
    request_bytes = pickle.dumps((os.getpid(), request, store_uri, dict(storage_options)))
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
            f"the process that builds indices cannot be started: {error}. The table is unchanged"
        ) from error
    with child:
        try:
            answer, output = _communicate(child, request_bytes, stop)
        finally:
            child.kill()
    try:
        transaction, problems, failure = pickle.loads(answer)
    except (EOFError, pickle.UnpicklingError):
        raise ChildDiedError(
            f"the process that builds indices ended with code {child.returncode}. The table is "
            f"unchanged. Its last output:{output[-_MAX_OUTPUT_BYTES:].decode(errors='replace')}"
        ) from None
    if failure is not None:
        raise failure
    if problems:
        _log.warning(
            "pylance could not build some indices. Its last output: %s",
            output[-_MAX_OUTPUT_BYTES:].decode(errors="replace"),
        )
    return Built(None if transaction is None else decode_transaction(transaction), problems)


def _communicate(
    child: "subprocess.Popen[bytes]", request_bytes: bytes, stop: threading.Event
) -> tuple[bytes, bytes]:
    unsent: bytes | None = request_bytes
    while not stop.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(unsent, timeout=_POLL_SECONDS)
        unsent = None
    raise StoppedChildError


def main() -> None:
    """Answer the request on the standard input."""
    os.nice(19)
    stdout = os.dup(1)
    os.dup2(2, 1)  # libraries may print to the standard output
    parent, request, store_uri, storage_options = pickle.loads(sys.stdin.buffer.read())
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(OSError):  # not on every system
        Path("/proc/self/oom_score_adj").write_text("1000")
    answer = _answer(request, store_uri, storage_options)
    with os.fdopen(stdout, "wb") as stream:
        stream.write(pickle.dumps(answer))
    os._exit(0)  # without waiting for pylance's threads


def _answer(
    request: BuildRequest, store_uri: str, storage_options: Mapping[str, Any]
) -> tuple[bytes | None, Mapping[str, str], Exception | None]:
    """Build indices; return the transaction, the problems, and why nothing could be built."""
    try:
        built = build(request, open_store(store_uri, storage_options))
    except LanceStreamError as error:
        return None, {}, error
    transaction = None if built.transaction is None else encode_transaction(built.transaction)
    return transaction, built.problems, None


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    os._exit(1)
