"""Commands for names and readers of versions: `tags`, `branches`, `clone` and `consumers`.

Read `tags` first; `branches`, `clone` and `consumers` are built alike.
"""
