"""Key lookup: finds the rows of a table that have the keys of a batch.

Read `batch_keys` first (the keys of a batch as a lookup), then `matching` (the rows of a version
that have one of these keys). `comparing` and `key_filter` support the lookup; `file_columns` finds
the column of the file that stores a key column. `bounds` excludes files without reading their keys;
`index` finds keys in files that were read or written before.
"""
