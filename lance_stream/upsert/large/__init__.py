"""Large upserts: batches that do not fit into one process, applied by ranges of keys.

Read `staged_rows` first (tasks stage rows for the commit, which processes them by range), then
`in_parts` (the work for one range).
"""
