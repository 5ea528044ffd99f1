"""Reads rows: fragments in, Arrow batches out.

Read `units` and `fragment` first: the driver plans work units, and workers read them
(`unit_rows`), ahead of the consumer (`prefetch`). `field_parts` combines columns whose fields are
in several files, `selections` splits rows into batches, `page_cache` caches pages between batches.

`scan` and `take` are the user-level operations; `row_lookup` finds rows by their ids. `skipping`
excludes rows by statistics, and `indices` by indices that pylance built. `blobs` presents blobs as
files, whose bytes `blob_locations` finds.
"""
