"""Upserts: the rows of a batch are held against a table by their keys.

Read `upsert` first (the way from rows to one commit), then `incoming` (one row a key), `matching`
(which rows of the table have a key of the batch) and `keys` (the lookup that goes to workers).
Beside them: `key_filter` (rows without a key of the batch are told apart by a word), `key_bounds`
and `known_key_bounds` (which fragments can hold a key at all), `ordered_values` (what bounds
compare by), `tombstones` and `tombstone_files` (deletes that are remembered).

May import: what the other verbs may, and they.
"""
