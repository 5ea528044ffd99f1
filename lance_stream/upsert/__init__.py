"""Upserts: what a batch does to each row of a table, found by its key.

Read `incoming` first (one row for each key), then the steps of one upsert: `decisions` (what
happens to each row), `row_writer` (new files), `update_planner` (one operation), `attempts` (the
loop around them, until one is committed) and `upsert` (the entry). `parts` is the outcome of some
rows, `tombstones` and `tombstone_files` are remembered deletes, `change_feeds` prepares the rows of
a change feed, and `change_rules` the arguments of AUTO CDC. `histories` applies events instead of
rows, `large` takes batches that do not fit into one process.

May import: what the verbs may, except for the verbs.
"""
