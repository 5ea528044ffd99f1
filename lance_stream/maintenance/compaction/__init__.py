"""Compaction: rows of small fragments, and of those with many dead rows, in fewer new fragments.

Read `plan` first (which fragments are worth it), then `rewrites` (their rows in new files, by
whoever writes them) and `compact` (what others did meanwhile is followed, and one commit).
`background` does it beside a stream's batches.

May import: what the other verbs may, and they.
"""
