"""The format "lance" for writers: `df.write`, `writeStream.format("lance")`, INSERT.

Start with `writer_factory` (which writer a save gets), then `lance_writer` (appends, overwrites,
and the commit) and `upsert_writer` (upserts by key). `checked_rows` finds the rows that do not fit.
The sink uses these modules, too: `bad_row_rules` (for which rows a batch is refused), `batch_types`
(the types of its columns) and `new_tables` (the columns of a table that its rows create).
"""
