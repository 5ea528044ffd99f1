"""Commands for references to versions: `tags`, `branches`, `clone` and `consumers`.

Read `tags` first; `branches`, `clone` and `consumers` have the same structure.
"""
