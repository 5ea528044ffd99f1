"""Commands that maintain a table.

Read `compact` first; `cleanup`, `indices`, `restore`, `quarantine` and `migrate` are built alike.
"""
