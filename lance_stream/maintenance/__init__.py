"""Maintenance of a table: cleanup, verification, compaction, tags, branches, consumers.

Read `cleanup` first, with `consumers`, whose unread versions it keeps, and `auto_cleanup`, which
runs it after commits. Then `tags` and `branches`; `links` refuses to delete through links.
`compaction` and `indices` can run alongside a stream (`upkeep`); `verification` checks a version;
`migrations` change a table's format.
"""
