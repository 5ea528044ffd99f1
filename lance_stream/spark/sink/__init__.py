"""The sink: one micro-batch becomes one version of a Lance table, exactly once.

    batch N of a stream
        |  is it in the table's ledger?  then it is skipped                            replays
        |  do the columns fit?           otherwise an error says why
        v
    its mode processes the rows: files are written that no version names yet           modes
        v
    one commit: the new files, and the ledger's entry for batch N

Spark calls the sink once for a batch, and again after a restart if it does not know whether the
batch was completed: after a crash, but also after an orderly stop. The ledger is part of the same
manifest as the rows, so a batch is committed together with its entry, or not at all.

Start with `lance_sink` (the public function, and the path of a batch), then `modes` (append,
upsert, overwrite). They use `arguments` (checked arguments), `batch_writing` (Spark's tasks write a
batch to files), `spark_workers` (which processes read the table's files), `staged_upserts` and
`range_tasks` (batches that the driver does not collect), `compaction` (background compaction),
`replays` (repeated batches), `bad_rows` (rows that do not fit) and `reports` (the outcome of a
batch).
"""
