"""Compaction: rewrites small fragments, and fragments with many deleted rows, into larger ones.

Read `plan` first (which fragments to rewrite), then `rewrites` (writing their rows to new files)
and `compact` (adapting to concurrent changes, and the commit). `background` runs compactions
alongside a stream's batches.
"""
