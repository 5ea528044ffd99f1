"""The command line, `lance-stream`: inspect tables, follow their changes, maintain them.

Each verb is a module of the same name with its arguments (`add_arguments`) and its action (`run`).
`main` has the table of verbs and the exit codes of errors. Nothing here starts Spark.
"""
