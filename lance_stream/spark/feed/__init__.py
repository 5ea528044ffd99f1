"""The change feed with Spark: as a batch, as a stream, and as a SQL function.

Read `planning` first (what lies between two places of a table's history, as Spark's tasks), then
`batch_reader`, `offsets` (where a stream stands) and `stream_reader`; `table_function` is SQL's.
"""
