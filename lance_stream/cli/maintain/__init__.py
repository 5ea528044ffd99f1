"""Commands that maintain a table: `compact`, `cleanup`, `indices`, `restore` and others.

Read `compact` first; `cleanup`, `indices`, `restore`, `quarantine` and `migrate` have the same
structure.
"""
