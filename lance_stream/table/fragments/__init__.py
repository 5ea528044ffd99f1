"""Fragments: horizontal slices of a table's rows.

Read `fragment` (one fragment, with its data files), `deletion_vectors` (its deleted rows),
`fragment_list` (all fragments of a version, decoded on demand) and `file_sizes`.
"""
