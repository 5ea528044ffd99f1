"""Finds the rows in which two versions differ, from their manifests.

Read `appended` for versions that only add fragments, `diff` for all others, `row_counts` for the
number of changes.
"""
