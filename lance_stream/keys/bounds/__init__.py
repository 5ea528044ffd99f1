"""Key bounds: exclude the files that cannot contain a key of a batch.

Read `key_bounds` first (the bounds of files, and how they exclude a batch), then `ordered_values`
(the order of values) and `cached_key_bounds` (the bounds that a process caches and a table saves).
"""
