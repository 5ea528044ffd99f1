"""The format "lance" for readers: the data source that Spark loads, and reading a version.

Start with `lance_source` (the class that Spark calls), then `reader_factory` (which reader a load
gets) and `table_reader` (one version of a table as a batch). `table_functions` has the SQL
functions that show a table. The change feed is in `spark.feed`, and writing in `spark.writer`.
"""
