"""Commands that maintain a table.

`compact`, `cleanup`, `indices`, `restore`, `quarantine` and `migrate`: one module each.
"""
