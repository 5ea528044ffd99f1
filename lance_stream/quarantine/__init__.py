"""Quarantine: the table beside a table for the rows of its streams that do not fit it.

`table` has its columns and location, and sets the bad rows of a batch aside; `replay` lists them
and writes them to the table once they fit. Decision 034 says why both happen exactly once.

May import: what is below `dataset`.
"""
