"""Full-zip layout: values interleaved with their levels, each readable without the others.

Read `full_zip` first, then `zipped_items` (a value with its levels) and `row_index` (where rows
start).
"""
