"""Quarantine: a second table for the rows of streams that do not fit the table.

Read `table` first: the quarantine's columns and location. `quarantine_writer` writes the bad rows
of a batch, and `listing` lists them. `replay` writes them to the table once they fit, by `claims`;
each row has the rules of its sink (`recorded_rules`), and the user may correct it (`corrections`).
Decision 035 explains why both happen exactly once, decision 067 why there is a table.
"""
