"""The format "lance" for readers: the data source that Spark loads, and reading a version.

Read `lance_source` first (the class that Spark calls), then `reader_factory` (chooses the reader of
a load) and `table_reader` (one version of a table as a batch). `table_functions` contains the SQL
functions that inspect a table. The change feed is in `spark.feed`, and writing in `spark.writer`.
"""
