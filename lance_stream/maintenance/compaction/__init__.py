"""Compaction: rewrites small fragments, and fragments with many deleted rows, into larger ones.

Read `plan` first (which fragments are worth it), then `rewrites` (writing their rows to new files)
and `compact` (following concurrent changes, and one commit).
`background` does it alongside a stream's batches.
"""
