"""The ledger: does a table already contain this micro-batch?

Read `micro_batch` first, the identity of a batch; then `row_digests`, what identifies its rows;
`verdicts`, the table of all answers; `lookup`, which finds a batch id in the ledger of a version;
`replay_check`, which asks once for each version; `recording`, which makes the entry that the commit
stores. Off the path: entries that other programs removed (`foreign_restores`), which batch may
create a table (`first_batch`), and all errors (`messages`). The format of the entries is part of
the manifest: `table.config.ledger_entries`.
"""
