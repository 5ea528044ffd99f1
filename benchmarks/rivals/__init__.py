"""Delta and Iceberg in comparison: the benchmark of sinks on their PySpark and on the newest."""
