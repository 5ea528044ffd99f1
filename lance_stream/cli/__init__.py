"""The command line, `lance-stream`: to look at tables, follow their changes, take care of them.

Each verb is a module with its name: what it takes (`add_arguments`), and what it does (`run`).
`main` has the table of verbs, and says by which exit code an error ends. Nothing here starts Spark.
"""
