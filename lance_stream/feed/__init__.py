"""The change feed: the rows that were inserted, updated and deleted, version by version.

Read `changes` first, which says what the feed gives; then `rules` (what is asked for), `intervals`
(which versions, and when they were), `steps` (what one version changed, to be counted and cut
before anything is read), `past` (in which rows two versions differ, and what those between have to
do with it), `lineage` and `columns_of_versions` (how the feed's columns are found in another
version), `shown_values` (and their values under the feed's types), `change_units` (the worker's
side).

A stream's side: `positions` (where it stands), `following` (how far the next batch goes, and what
is read for it), `resumed_columns` (what its columns mean when it goes on), `snapshots` (what it
begins with), `versions_left` and `newest_version` (what there is).
"""
