"""The operations that change a table, one module per verb.

Read `append` first, the simplest one, then `create`, `overwrite`, `delete`, `update`; the verbs of
`columns`; `restore`, `configure` and `shallow_clone` (with `clone_origins`). `jobs` are distributed
writes: planned once, committed once.
"""
