"""The change feed: the rows that were inserted, updated and deleted, version by version.

Read `changes` first, which says what the feed gives. Then:

    rules, intervals         what is asked for; which versions, and when they were made
    steps                    what one version changed, counted and cut before anything is read
    row_differences          in which rows two versions differ; what the ones between tell of it
    lineage                  what each version was made from
    columns_of_versions      how the feed's columns are found in another version
    shown_values             its values under the feed's types
    change_units             the worker's side

A stream's side:

    positions                where it stands
    follower                 how far the next batch goes, and what is read for it
    resumed_columns          what its columns mean when it resumes
    snapshots                what it begins with
    versions_left, newest_version    which versions there are
"""
