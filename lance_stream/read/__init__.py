"""Reading rows: fragments in, Arrow batches out.

Read `units` and `fragment` first: a driver plans work units, workers read them. `scan` and `take`
are what users ask for; `page_skipping` and `lineage_skipping` say which rows need not be read;
`blobs` are read as files.
"""
