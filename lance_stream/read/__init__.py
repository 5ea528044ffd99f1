"""Reads rows: fragments in, Arrow batches out.

Read `units` and `fragment` first: a driver plans work units, workers read them (`unit_rows`).
`scan` and `take` are the user-level operations; `skipping` finds rows that need not be read, and so
does `indices`, from indices that pylance made; `blobs` are read as files.
"""
