"""Upserts of batches that do not fit into one process, by ranges of their keys.

Read `staged_rows` first (tasks keep rows for the commit, which processes ranges of them), then
`in_parts` (what is done for one range).
"""
