"""Commits of micro-batches to several tables: one after the other, and together.

    python -m benchmarks.several_tables [--tables 2] [--batches 30] [--postgresql URL]

Each batch appends ten rows to each table on a local disk, whose versions are published in SQLite or
PostgreSQL. The ways take turns, batch by batch, on tables of their own; medians are shown.

    in order        one commit for each table, one after the other, as `lance_sinks` does by default
    side by side    the same commits in a thread for each table, without waiting for each other
    together        `atomic=True`: in threads, and one transaction for all
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream.commit.commit_groups import Member, run_together
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.verbs.append import append

ROWS = pa.table({"id": np.arange(10), "name": [f"name {number}" for number in range(10)]})


def write(uri: str, options: dict[str, str], batch_id: int, member: Member | None = None) -> None:
    """Append a batch to a table, as a sink does."""
    table = open_newest(uri, storage_options=options)
    if member is not None:
        table = replace(table, log=member.join(table.log))
    assert append(table, ROWS, PendingBatch.of("stream", batch_id)).is_new


def in_order(uris: list[str], options: dict[str, str], batch_id: int) -> None:
    """Commit to one table after the other."""
    for uri in uris:
        write(uri, options, batch_id)


def side_by_side(uris: list[str], options: dict[str, str], batch_id: int) -> None:
    """Commit to all tables in threads."""
    threads = [Thread(target=write, args=(uri, options, batch_id)) for uri in uris]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()


def read_together(uris: list[str], options: dict[str, str], batch_id: int) -> None:
    """Commit to all tables in one transaction."""
    run_together({uri: partial(write, uri, options, batch_id) for uri in uris})


WAYS: dict[str, Callable[[list[str], dict[str, str], int], None]] = {
    "in order": in_order,
    "side by side": side_by_side,
    "read_together": read_together,
}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=2)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--postgresql", help="the URL of a database")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        options = {"manifest_store": arguments.postgresql or f"sqlite://{folder}/manifests.db"}
        uris = {
            way: [str(Path(folder, f"{way} {number}")) for number in range(arguments.tables)]
            for way in WAYS
        }
        for value in (uri for of_way in uris.values() for uri in of_way):
            lance_stream.create_dataset(value, ROWS.schema, storage_options=options)
        for batch_id in range(arguments.batches):
            for way, commit in WAYS.items():
                begin, begin_cpu = time.perf_counter(), time.process_time()
                commit(uris[way], options, batch_id)
                seconds[way].append(time.perf_counter() - begin)
                cpu[way].append(time.process_time() - begin_cpu)
    where = "PostgreSQL" if arguments.postgresql else "SQLite"
    num_batches, num_tables = arguments.batches, arguments.tables
    print(f"{num_batches} batches of 10 rows into {num_tables} tables; versions in {where}")
    for way in WAYS:
        print(
            f"{way:14} {1000 * statistics.median(seconds[way]):8.1f} ms "
            f"{1000 * statistics.median(cpu[way]):8.1f} ms CPU"
        )


if __name__ == "__main__":
    main()
