"""Verbs that add, change and drop columns.

Read `schema_changes` first, which all of them use. `drop_columns` and `rename_columns` change the
schema only; `add_columns` and `computed_columns` add columns, `alter_columns` and `widen_columns`
change their types, and `fit_columns` does both for incoming rows. `column_files` writes the new
values.
"""
