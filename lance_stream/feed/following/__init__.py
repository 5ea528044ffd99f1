"""Follows a table in batches, from one position in its history to the next.

    positions                positions in a table's history, and limits of a batch
    offsets                  positions as the offsets that a checkpoint stores
    follower                 the end of the next batch, and what to read for it
    resumed_columns          the columns of a stream after a restart
    snapshots                the initial snapshot
    appended_fragments       appended rows only, as whole fragments
    existing_versions        the versions that still exist
    newest_version           polls for new versions

Read `positions` first, then `follower`.
"""
