"""Reads rows: fragments in, Arrow batches out.

Read `units` and `fragment` first: a driver plans work units, workers read them (`unit_rows`), ahead
of the consumer (`prefetch`). `field_parts` combines columns whose fields are in several files,
`selections` cuts rows into batches, `page_cache` keeps pages between two batches.

`scan` and `take` are the user-level operations; `row_lookup` finds rows by their ids. `skipping`
excludes rows that need not be read, and so does `indices`, by indices that pylance built. `blobs`
are read as files, which `blob_locations` finds.
"""
