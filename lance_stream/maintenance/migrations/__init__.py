"""Migrations of a table: manifest names, manifest stores, stable row ids.

Read `manifest_paths`, `manifest_store_moves` and `stable_row_ids` in any order.
"""
