"""The change feed: the rows that were inserted, updated and deleted, version by version.

Read `changes` first, which defines what the feed contains. Then:

    rules, intervals         the reader's settings; which versions, and when they were committed
    steps                    what one version changed, counted and split before any data is read
    row_differences          which rows differ between two versions, and what versions between add
    row_counts               how many
    ancestry                 what each version was made from
    columns_of_versions      finding the feed's columns in another version
    value_conversion             a version's values converted to the feed's types
    change_units             what workers run
    following                the same, from a position to the next, without an end
"""
