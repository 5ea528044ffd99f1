"""What keeps a table healthy: cleanup, verification, compaction, tags, branches, consumers.

Read `cleanup` first, with `consumers`, whose versions it leaves alone, and `auto_cleanup`, which
runs it after commits. Then `tags` and `branches`; `compaction` and `indices`, which a stream's
writer runs by `upkeep`; `verification`; and `migrations`.
"""
