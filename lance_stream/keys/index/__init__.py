"""The index of keys: which row of which file has a key, without reading key columns.

Read `key_index` first (what a process keeps of a table), then `memtable` (keys in memory)
and `run_files` with `run_format` and `run_merging` (runs in files that processes share).
`remap_keys` keeps the index through a compaction, `shared_index` prepares it for ranges of keys
in tasks. `sorted_words` searches a run; `column_cache` keeps sequences beside keys.
"""
