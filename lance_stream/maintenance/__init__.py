"""What keeps a table healthy: cleanup, verification, compaction, tags, branches, consumers.

`stable_row_ids` and `manifest_store_moves` migrate a table to another row id scheme or manifest
store.
"""
