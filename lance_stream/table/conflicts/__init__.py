"""Conflicts: may two transactions that were planned on the same version both commit?

Read `rules` for the table, `conflict_tests` for its conditions, `rebase` for merging changes, and
`carried_rows` for rows that were deleted while a compaction rewrote them.
"""
