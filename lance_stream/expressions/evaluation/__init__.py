"""How an expression is evaluated on Arrow batches, with Spark's types and values.

Read `rules` first (one for each kind of node), then `functions` (those that an expression may
call). Both use `numbers`, `arithmetic`, `comparisons`, `casts`, `times`, `patterns` and
`json_paths`.
"""
