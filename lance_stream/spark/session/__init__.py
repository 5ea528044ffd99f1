"""The Spark session: its settings of stores, column names, types, and the display of errors.

Start with `session_options` (a session's settings as they are pickled) and `spark_types` (Spark's
types and ours). `connect` and `running_queries` find out about a sink's query, `python_check`
and `worker_archives` about the workers' Python, and `user_errors` shows errors to users.
"""
