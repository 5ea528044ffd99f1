"""A writer in a process of its own that stops at a step of its commit, and waits to be killed."""

import time
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

import lance_stream
from lance_stream.commit.external_log import ExternalLog
from tests.contracts.watched_stores import WatchedManifests, WatchedStore

STEP_OF_STORE = {
    ("write", True): 1,
    ("create_once", False): 3,
    ("delete", True): 5,
}
STEP_OF_MANIFESTS = {"put_if_not_exists": 2, "put_if_exists": 4}


def append_and_stop(
    says: Connection, uri: str, options: dict[str, str], step: int, row: int
) -> None:
    """Append a row; say "stopped" when it is about to take a step, or else "done".

    Args:
        says: Where to.
        uri: The table's.
        options: Its storage options.
        step: Which of a commit's steps; 6 comes after the last one, 0 never.
        row: The row's id.
    """
    ds = lance_stream.open_dataset(uri, storage_options=options)
    log: Any = ds.table.log
    assert isinstance(log, ExternalLog)

    def stop_at(taken: int | None) -> None:
        if taken == step:
            says.send("stopped")
            time.sleep(600)

    def in_store(call: str, path: str) -> None:
        if path.startswith("_versions/"):
            stop_at(STEP_OF_STORE.get((call, ".manifest-" in path)))

    def in_manifests(call: str, _version: int) -> None:
        stop_at(STEP_OF_MANIFESTS.get(call))

    log.store = WatchedStore(log.store, before=in_store)
    log.manifests = WatchedManifests(log.manifests, before=in_manifests)
    ds.append(pa.table({"id": pa.array([row], pa.int64())}))
    stop_at(6)
    says.send("done")
