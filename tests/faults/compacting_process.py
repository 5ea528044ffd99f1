"""Upserts batch after batch, with compactions beside them: run by a test, which kills it."""

import sys

import pyarrow as pa

import lance_stream
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.maintenance.compaction import automatic
from lance_stream.maintenance.compaction.automatic import AUTO
from lance_stream.maintenance.compaction.background import BackgroundCompaction
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert

NUM_OLD_KEYS = 400


def batch(number: int) -> pa.Table:
    """Rows of which most are there already, and one is new."""
    old = [key for key in range(NUM_OLD_KEYS) if key % 7 == number % 7]
    keys = [*old, NUM_OLD_KEYS + number]
    return pa.table({"id": keys, "x": [number] * len(keys)})


def main(uri: str, num_batches: int, every: int | str) -> None:
    """Put in the batches that are not in the table yet."""
    automatic.BATCHES_BETWEEN_CHECKS, automatic.FAN_IN = 1, 3  # type: ignore[misc]  # so that rounds come early
    compaction = BackgroundCompaction(every)
    for number in range(num_batches):
        ds = lance_stream.open_dataset(uri)
        with compaction.batch():
            result = upsert(
                ds.table, batch(number), UpsertRules(("id",)), PendingBatch.of("app", number)
            )
        if result.is_new:
            compaction.after_batch(number, lambda: lance_stream.open_dataset(uri).table)
            print(number, flush=True)
    compaction.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), AUTO if sys.argv[3] == AUTO else int(sys.argv[3]))
