"""What changes a table, a module a verb.

`append` is the simplest one. `jobs` are writes of many workers: planned once, committed once.
"""
