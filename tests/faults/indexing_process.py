"""Upserts batch after batch into a table with every kind of index, with upkeep beside them.

Run by a test, which kills it.
"""

import os
import sys

from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.maintenance.indices import background
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.maintenance.upkeep import Upkeep
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.oracle.indexed_table import IndexedTable


def main(uri: str, num_batches: int) -> None:
    """Put in the batches that are not in the table yet."""
    background.PAUSE = 0.0  # type: ignore[misc]  # so that some round is always under way
    upkeep = Upkeep(4, RefreshPolicy(rows=1))
    table = IndexedTable(uri, 0, stable_row_ids=True, is_new=False)
    for number in range(num_batches):
        table.dice.seed(number)
        rows = table.rows([*table.dice.sample(range(30 + number), 6), 30 + number])
        with upkeep.batch():
            result = upsert(
                table.ours.table, rows, UpsertRules(("id",)), PendingBatch.of("app", number)
            )
        if result.is_new:
            upkeep.after_batch(number, lambda: table.ours.table)
            print(number, flush=True)
    assert upkeep.compaction is not None
    assert upkeep.indexing is not None
    upkeep.compaction.wait()
    upkeep.indexing.after_batch(lambda: table.ours.table)
    upkeep.indexing.wait()
    print("end", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
