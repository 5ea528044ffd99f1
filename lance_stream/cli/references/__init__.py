"""Commands for `tags`, `branches`, `clone`, and for readers and writers: `consumers`, `streams`.

Read `tags` first; the others have the same structure.
"""
