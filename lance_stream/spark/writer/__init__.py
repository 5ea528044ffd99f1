"""The format "lance" for writers: `df.write`, `writeStream.format("lance")`, INSERT.

Start with `writer_factory` (which writer a save gets), then `lance_writer` (appends, overwrites,
and the commit) and `upsert_writer` (upserts by key). `checked_rows` finds the rows that do not fit,
and `new_tables` gives the columns of a table that rows create, for the sink, too.
"""
