"""Bounds of keys: which files cannot hold a key of a batch.

Read `key_bounds` first (the bounds of files, and how they exclude a batch), then `ordered_values`
(the order in which values are compared) and `cached_key_bounds` (what a process and a table keep).
"""
