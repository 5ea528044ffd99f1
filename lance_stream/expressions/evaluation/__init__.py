"""Evaluates expressions on Arrow batches, with the types and results of Spark.

Read `rules` first (one per kind of node), then `functions` (the functions that expressions can
call). Both use `numbers`, `arithmetic`, `comparisons`, `casts`, `times`, `patterns` and
`json_paths`.
"""
