"""Filters by index: finds the rows that a filter may match without reading its columns.

Read `candidates` first, the entry point for scans. `column_conditions` finds the parts of a filter
that indices can serve; `segments` opens an index, whose files `btree` and `bitmap` read.
"""
