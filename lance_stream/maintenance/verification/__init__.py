"""Verification: whether a version follows the format's rules, and which rows it has.

Read `verify` first (every rule), then `verify_values` (every value is decoded); `comparing`
compares the rows of two tables by one number.
"""
