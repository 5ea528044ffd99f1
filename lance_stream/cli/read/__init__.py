"""Commands that print rows: `head`, `query` and `changes`.

Read `query` first; `rows_printed` and `changes_printed` read the rows; `writers` prints them as a
table, as JSON or as Arrow; `values` converts them to Python values.
"""
