"""Entries of a table's config that this package writes or understands, one module for each.

Read `ledger_entries` and `tombstones`, which streams write; `auto_cleanup` and `lineage_limits`,
which users set; `manifest_store_mark`, which names the store that publishes versions.
"""
