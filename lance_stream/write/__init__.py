"""Writes rows: Arrow batches become fragments that no version references yet, then a commit.

Read `fragments` first, then `planning`, which all verbs that write share. `row_checks` finds the
rows that do not fit.
"""
