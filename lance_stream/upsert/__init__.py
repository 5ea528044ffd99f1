"""Upserts: the rows of a batch are matched with a table by their keys.

Read `upsert` first (the way from rows to one commit), then `incoming` (one row a key), `matching`
(which rows of the table have a key of the batch) and `keys` (the lookup that workers use), then
`decisions`, `written_rows` and `planned_update`. `staged_rows` and `in_parts` take the
same way for large batches, by ranges of keys in `staged_files`; `shared_index` prepares the index
for them. How an attempt begins and commits is in `attempts` for both.
Beside them: `key_filter` (quickly rules out rows without a key of the batch), `key_bounds`
and `known_key_bounds` (which fragments can hold a key at all), `ordered_values` (the order that
bounds use), `file_columns` (which column of which file has the keys), `remembered_keys` (which rows
have a key, as far as this process knows; `memory_runs`, `remembered_columns`), `key_index`,
`key_runs` and `merged_runs` (the same in files that processes share), `carried_keys` (what becomes
of them in a compaction), `tombstones` and `tombstone_files` (remembered deletes).

May import: what the other verbs may, plus the verbs.
"""
