"""Full-zip layout: each value is stored with its own levels, and is found without the others.

Read `full_zip` first, then `zipped_items` (a value with its levels) and `row_index` (where rows
start).
"""
