"""The ledger: does a table already contain this micro-batch?

Read `micro_batches` first: it looks a batch up in the ledger of a version. `replay_check` decides
whether a batch with a known batch id is the committed one, by the digest of its rows
(`row_digests`). The entries themselves are part of a manifest: `table.ledger_entries`.
"""
