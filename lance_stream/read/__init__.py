"""Reads rows: fragments in, Arrow batches out.

Read `units` and `fragment` first: a driver plans work units, workers read them (`unit_rows`), ahead
of their consumer (`prefetch`). `field_parts` puts columns together that several files have,
`selections` cuts rows into batches, `kept_pages` keeps pages between two batches.

`scan` and `take` are the user-level operations; `row_lookup` finds rows by their ids. `skipping`
finds rows that need not be read, and so does `indices`, from indices that pylance made. `blobs` are
read as files, which `blob_places` locates.
"""
