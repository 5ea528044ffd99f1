"""The ledger: determines whether a table already contains a micro-batch.

Read `micro_batch` first, the identity of a batch; then `row_digests`, which identify its rows;
`verdicts`, the table of all verdicts; `lookup`, which finds a batch id in the ledger of a version;
`replay_check`, which checks a batch once per version, and creates the entry that the commit stores.
A special case: entries that other programs removed (`foreign_restores`). `messages` has all errors.
The format of the entries is part of the manifest: `table.config.ledger_entries`.
"""
