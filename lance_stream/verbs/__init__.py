"""The operations that change a table, one module per verb.

`append` is the simplest one. `jobs` are distributed writes: planned once, committed once.
"""
