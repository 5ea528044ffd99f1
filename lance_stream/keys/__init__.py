"""Which rows have these keys? The keys of a batch, and the rows of a table that have them.

Read `batch_keys` first (the keys of a batch as a lookup), then `matching` (the rows of a version
that have one of them). `comparing` and `key_filter` serve the lookup; `file_columns` tells which
column of which file holds the keys. `bounds` excludes files without reading their keys, `index`
finds keys in files that were read or written before.

May import: row_updates and what it may.
"""
