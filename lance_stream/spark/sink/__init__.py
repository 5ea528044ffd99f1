"""The sink: one micro-batch becomes one version of a Lance table, exactly once.

    batch N of a stream
        |  is it in the table's ledger?  then nothing is done                          replays
        |  do the columns fit?           else nothing is done, and the error says why
        v
    what its mode does with the rows: files are written that no version names yet      modes
        v
    one commit: the new files, and the ledger's entry for batch N

Spark calls the sink once for a batch, and again after a restart when it does not know whether the
batch was done: after a crash, but after an orderly stop as well. The ledger stands in the same
manifest as the rows, so a batch is in with its entry, or not at all.

Read `lance_sink` first (what a user says, and the way of a batch), then `modes` (append, upsert,
overwrite). Beside them: `arguments` (what a user says, checked), `batch_writing` (a batch into
files by Spark's tasks), `spark_workers` (who reads the table's files), `large_upserts` (batches
that the driver cannot hold), `compaction` (who merges small fragments, beside the batches),
`replays` (a batch that comes again), `reports` (what became of it).
"""

from lance_stream.spark.sink.lance_sink import LanceSink, lance_sink
from lance_stream.spark.sink.reports import SinkCommit

__all__ = ["LanceSink", "SinkCommit", "lance_sink"]
