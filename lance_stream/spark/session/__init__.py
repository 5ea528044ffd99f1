"""What a Spark session determines: settings of stores, column names, types, and how errors look.

Start with `session_options` (a session's settings as they are pickled) and `spark_types` (Spark's
types and ours). `connect` and `running_queries` tell what a sink can know of its query,
`python_check` and `worker_archives` what the workers run, and `user_errors` how users see errors.
"""
