"""Upserts: update, insert and delete the rows of a table by key.

Read `incoming` first (one row per key), then the steps of one upsert: `decisions` (what happens to
each row), `row_writer` (new files), `update_planner` (one operation), `attempts` (the retry loop
around these steps) and `upsert` (the entry point). `parts` holds the outcome for a subset of the
rows, `tombstones` and `tombstone_files` hold remembered deletes, `change_feeds` prepares the rows
of a change feed, and `change_rules` the arguments of AUTO CDC. `histories` merges events instead
of rows. `large` handles batches that do not fit into one process.
"""
