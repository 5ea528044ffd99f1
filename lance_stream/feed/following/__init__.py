"""Follows a table in batches, from one position in its history to the next.

    positions                where a follower is in the table's history
    follower                 where the next batch ends, and what it reads
    resumed_columns          what the columns of a stream mean after a restart
    snapshots                the initial snapshot
    appended_fragments       appended rows only, as whole fragments
    existing_versions, newest_version    which versions still exist

Read `positions` first, then `follower`.
"""
