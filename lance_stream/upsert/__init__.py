"""Upserts: update, insert and delete the rows of a table by key.

Read `upsert` first (the entry point) and `rules` (its arguments), then its steps: `incoming` (the
batch in the table's types, with one row per key, chosen by `winners`), `keys.key_matcher` (the rows
of the table with these keys), `decisions` (what happens to each row), `row_writer` (new files),
`update_planner` (one operation) and `attempts` (the retry loop around these steps). `tombstones`
and `tombstone_files` hold remembered deletes, `change_feeds` prepares the rows of a change feed,
and `change_rules` the arguments of AUTO CDC. `histories` merges events instead of rows. `large`
handles batches that do not fit into one process.
"""
