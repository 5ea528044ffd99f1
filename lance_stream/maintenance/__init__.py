"""What keeps a table healthy: cleanup, verification, compaction, tags, branches, consumers.

`stable_row_ids` and `manifest_store_moves` take a table from one way of living to another.
"""
