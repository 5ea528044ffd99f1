"""The config entries that this library reads or writes, one module per entry.

Read `ledger_entries` and `tombstones`, which streams write; `auto_cleanup` and `lineage_limits`,
which users set; `manifest_store_mark`, which names the store that publishes versions.
"""
