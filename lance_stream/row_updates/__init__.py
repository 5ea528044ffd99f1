"""How an updated row is stored: moved to a new fragment, changed in place, or deleted.

Read `changed_rows` first (rows are read by address, deleted, and keep their lineage when they
move), then `in_place` (new columns beside the old ones) and `in_place_costs` (when that is
cheaper). `partial_structs` completes rows that lack parts of a struct; `staged_files` holds rows
on their way to a commit, sorted, to be read by ranges.

May import: read, write and what they may.
"""
