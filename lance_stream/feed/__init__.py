"""The change feed: the rows that were inserted, updated and deleted, version by version.

Read `changes` first, which defines what the feed contains. Then:

    rules, intervals         the reader's settings; which versions, and when they were committed
    steps                    what one version changed, counted and split before any data is read
    row_differences          which rows differ between two versions, and what versions between add
    lineage                  what each version was made from
    columns_of_versions      finding the feed's columns in another version
    shown_values             a version's values converted to the feed's types
    change_units             what workers run

For streams:

    positions                where the stream is in the table's history
    follower                 where the next batch ends, and what it reads
    resumed_columns          what the stream's columns mean after a restart
    snapshots                the initial snapshot
    existing_versions, newest_version    which versions still exist
"""
