"""Quarantine: a second table for the rows of streams that do not fit the table.

`table` defines its columns and location, `quarantine_writer` writes the bad rows of a batch, and
`replay` lists them and writes them to the table once they fit. Decision 035 explains why both
happen exactly once.
"""
