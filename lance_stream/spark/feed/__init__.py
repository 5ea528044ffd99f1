"""The change feed with Spark: as a batch, as a stream, and as a SQL function.

Read `planning` first (the changes between two positions of a table's history, as Spark's tasks),
then `batch_reader` and `stream_reader`, whose positions are stored as `feed.following.offsets`.
`sent_rows` sends the rows of small batches with their plan, `changes_frame` is `read_changes`, and
`table_function` is the SQL function.
"""
