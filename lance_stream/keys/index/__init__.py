"""The key index: finds the rows that have a key without reading key columns.

Read `key_index` first (the index of one table in one process), then `memtable` (keys in memory)
and `run_files` with `run_format` and `run_merging` (runs in files that processes share).
`remap_keys` carries the index over a compaction; `shared_index` prepares it for tasks that look up
ranges of keys. `sorted_words` searches a run.
"""
