"""Filters by index: finds the rows that a filter may match without reading its columns.

Read `candidates` first, the entry point for scans; `column_conditions` says which parts of a filter
an index can serve; `segments` opens the files of one, which `btree` and `bitmap` read.
"""
