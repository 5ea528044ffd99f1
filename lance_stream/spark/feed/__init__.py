"""The change feed with Spark: as a batch, as a stream, and as a SQL function.

Start with `planning` (the changes between two positions of a table's history, as Spark's tasks),
then `batch_reader` and `stream_reader`, whose positions are `feed.following.offsets`;
`table_function` is the SQL function.
"""
