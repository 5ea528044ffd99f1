"""Commits: from a planned operation to a published version.

Read `version_log` first, the interface to a table's versions, and `object_store_log`, which keeps
them in the table's directory. `committer` is the optimistic commit loop; `publishing` resolves
ambiguous responses of the store; `rebasing` reads and writes the deletion files of a rebase;
`repairs` adds what old writers omitted from a manifest. `external_log` publishes versions in a
manifest store, and `commit_groups` those of several tables at once. `opening` chooses the log of a
table.

The clock and randomness are arguments.
"""
