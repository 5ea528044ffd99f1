"""A writer of several tables in a process of its own, killed at a step or at any moment."""

import os
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from lance_stream.errors import CommitConflictError
from lance_stream.snapshot.table_version import TableVersion
from tests.commit.table_groups import TableGroup
from tests.contracts.watched_stores import WatchedManifests, WatchedStore
from tests.faults.publishing_process import STEP_OF_STORE

STEPS = (
    "staged",
    "put all",
    "final name",
    "final item",
    "staged deleted",
    "done",
)
"""What a process stops in front of; in all but the second, in one of the tables."""

_STEP_OF_NUMBER = {1: "staged", 3: "final name", 5: "staged deleted"}
_STEP_OF_MANIFESTS = {"put_all_if_not_exist": "put all", "put_if_exists": "final item"}


def commit_and_stop(
    says: Connection, group: TableGroup, batch_id: int, step: str, table: str
) -> None:
    """Commit a batch; send "stopped" before a step and wait, or "done" at the end.

    Args:
        says: Gets the message.
        group: The tables.
        batch_id: The batch.
        step: One of `STEPS`.
        table: The table whose commit stops. The others go on if they can.
    """

    def stop_at(taken: str | None) -> None:
        if taken == step:
            says.send("stopped")
            time.sleep(600)

    lock, shared = threading.Lock(), []

    def prepare(name: str, opened: TableVersion) -> None:
        log: Any = opened.log
        with lock:
            if not shared:
                shared.append(
                    WatchedManifests(
                        log.manifests,
                        before=lambda call, _: (
                            stop_at("put all")
                            if _STEP_OF_MANIFESTS.get(call) == "put all"
                            else None
                        ),
                        after=lambda call, _: (
                            stop_at("final item")
                            if _STEP_OF_MANIFESTS.get(call) == "final item"
                            else None
                        ),
                    )
                )
        log.manifests = shared[0]

        def in_store(call: str, path: str) -> None:
            if name == table and path.startswith("_versions/"):
                number = STEP_OF_STORE.get((call, ".manifest-" in path))
                stop_at(_STEP_OF_NUMBER.get(number or 0))

        log.store = WatchedStore(log.store, before=in_store)

    group.commit(batch_id, prepare=prepare)
    stop_at("done")
    says.send("done")


def commit_until_killed(says: Connection, group: TableGroup, first: int) -> None:
    """Commit consecutive batches, as a stream does after a restart.

    Args:
        says: Gets the number of each batch that is committed.
        group: The tables.
        first: The first batch, which may be committed already.
    """
    os.nice(5)
    batch_id = first
    while True:
        try:
            group.commit(batch_id)
        except CommitConflictError:  # another writer was faster each time; Spark repeats the batch
            continue
        says.send(batch_id)
        batch_id += 1


def append_by_themselves(group: TableGroup, seconds_between: float) -> None:
    """Append rows to the tables in turn, as another writer, until killed."""
    import lance_stream
    from tests.commit.table_groups import SCHEMA

    while True:
        for uri in group.uris.values():
            ds = lance_stream.open_dataset(uri, storage_options=group.options)
            ds.append(SCHEMA.empty_table().from_pylist([{"batch": -1, "name": "other"}], SCHEMA))
            time.sleep(seconds_between)
