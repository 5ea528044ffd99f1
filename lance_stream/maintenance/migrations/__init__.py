"""Migrations of a table: other names of its manifests, another manifest store, stable row ids.

Read `manifest_paths`, `manifest_store_moves` and `stable_row_ids` in any order.
"""
