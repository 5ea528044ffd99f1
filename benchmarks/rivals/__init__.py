"""Delta and Iceberg beside us: the benchmark of sinks on their PySpark, and on the newest."""
