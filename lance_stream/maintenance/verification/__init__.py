"""Verification: checks that a version follows the format, and that its rows are intact.

Read `verify` first (every rule), then `verify_values` (every value is decoded); `comparing`
compares the rows of two tables by one number.
"""
