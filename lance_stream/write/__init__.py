"""Writes rows: writes Arrow batches to fragments that no version references yet, and commits them.

Read `fragments` first, then `planning`, which all writing verbs use. `row_checks` finds the rows
that do not fit.
"""
