"""How updated rows are stored: moved to a new fragment, changed in place, or deleted.

Read `changed_rows` first (reads and deletes rows by address, and preserves the lineage of rows that
move), then `in_place` (writes only the changed columns) and `in_place_costs` (decides when that is
cheaper). `partial_structs` completes incoming structs that lack fields. `staged_files` stores rows
until the commit, sorted, so that they can be read by range.
"""
