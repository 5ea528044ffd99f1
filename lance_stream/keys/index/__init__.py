"""The index of keys: which row of which file has a key, without reading key columns.

Read `remembered_keys` first (what a process keeps of a table), then `memory_runs` (keys in memory)
and `key_index` with `key_runs` and `merged_runs` (runs in files that processes share).
`carried_keys` keeps the index through a compaction, `shared_index` prepares it for ranges of keys
in tasks. `sorted_words` searches a run; `remembered_columns` keeps sequences beside keys.
"""
