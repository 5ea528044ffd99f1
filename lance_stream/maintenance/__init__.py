"""Maintenance of a table: cleanup, verification, compaction, tags, branches, consumers.

Read `cleanup` first, with `consumers`, whose versions it leaves alone, and `auto_cleanup`, which
runs it after commits. Then `tags` and `branches`; `links` refuses to remove what is a link.
`compaction` and `indices` are what a stream's writer runs by `upkeep`; `verification` checks a
version; `migrations` change a table's format.
"""
