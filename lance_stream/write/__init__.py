"""Writes rows: Arrow batches become fragments that no version references yet, then a commit.

Read `fragments` first, then `planning`, which all verbs that write share. `micro_batches`,
`batch_proofs` and `row_digests` identify the micro-batch of a stream that rows belong to, and
whether a table already has it. `row_checks` finds the rows that do not fit.
"""
