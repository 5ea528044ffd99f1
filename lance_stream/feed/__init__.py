"""The change feed: the rows that were inserted, updated and deleted, version by version.

Read `changes` first, which defines what the feed contains. Then:

    rules, intervals         the reader's settings; which versions, and when they were committed
    steps                    what one version changed, counted and split before any data is read
    row_differences          which rows differ between two versions, and what versions between add
    row_counts               the number of differing rows
    ancestry                 the version that each version was derived from
    columns_of_versions      finding the feed's columns in another version
    value_conversion         a version's values converted to the feed's types
    change_units             work units for the workers
    following                the feed as an endless stream, from position to position
"""
