"""Writing rows: Arrow batches in, fragments out that no version names yet; and then their commit.

Read `fragments` first, then `planning`, which all verbs that write share. `micro_batches`,
`batch_proofs` and `row_digests` tell which batch of which stream some rows are, and whether a table
has it.
"""
