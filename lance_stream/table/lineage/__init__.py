"""Lineage: the row ids of rows, and the versions in which they were created and last updated.

Read `row_ids` and `row_versions` for the sequences of one fragment, `constant_lineage` for those of
many fragments at once, `row_addresses` for finding rows by row id. `ascending` has set operations,
`decoded_sequences` a cache.
"""
