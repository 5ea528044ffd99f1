"""Compaction: moves rows of small fragments, and of those with many deleted rows, to fewer ones.

Read `plan` first (which fragments are worth it), then `rewrites` (writing their rows to new files)
and `compact` (following concurrent changes, and one commit).
`background` does it alongside a stream's batches.

May import: what the other verbs may, plus the verbs.
"""
