"""The change feed: the rows that were inserted, updated and deleted, version by version.

Read `changes` first, which defines what the feed contains. Then:

    rules, intervals         the reader's settings; ranges of versions and commit timestamps
    steps                    the changes of one version, counted and split before data is read
    row_differences          the rows that differ between two versions
    row_counts               the number of rows that each version changed
    ancestry                 the version that each version derives from
    columns_of_versions      finds the feed's columns in another version
    expected_columns         compares the columns of a reader with those of a later version
    value_conversion         converts a version's values to the feed's types
    selection                filters rows and projects columns of the feed
    change_units             work units for the workers
    following                the feed as an endless stream, from position to position
"""
