"""The sink: one micro-batch becomes one version of a Lance table, exactly once.

    batch N of a stream
        |  is it in the table's ledger?  yes: skip it                                  replays
        |  do the columns fit?           no: raise an error                              batch
        v
    its mode writes files that no version references yet             modes, staged_upserts
        v
    one commit: the new files, and the ledger entry for batch N

Spark calls the sink once for a batch, and again after a restart if it does not know whether the
batch was completed: after a crash, but also after an orderly stop. The ledger is part of the same
manifest as the rows, so a batch is committed together with its entry, or not at all.

Start with `lance_sink` (the public function, and the path of a batch), then `batch` (its rows, and
the table for them) and `modes`. The other public functions are in `auto_cdc_sink` and `several`.
`batch_writing` writes a batch to files by Spark's tasks, `bad_rows` handles rows that do not fit,
`output_modes` refuses queries whose results a mode would store incorrectly, `batch_calls` tracks
the calls of one run, and `reports` has the outcome of a batch.
"""
