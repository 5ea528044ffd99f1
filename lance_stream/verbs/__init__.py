"""The operations that change a table, one module per verb.

Read `append`, the simplest one, first; then `create`, `overwrite`, `delete` and `update`; then
`columns`; then `restore`, `configure` and `shallow_clone` (with `clone_origins`). `jobs` has
distributed writes: planned once, committed once.
"""
