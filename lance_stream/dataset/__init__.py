"""The verbs on a table, without Spark.

`dataset` has the object that users hold; each of its verbs is a module: `opening`, `scan`, `take`,
`changes`, `append`, `overwrite`, `delete`, `create`, `configure`, `history`, `verify`. What a
worker does for them is in `read_fragment` and `write_fragments`: both take picklable values and
need nothing else. Read `table_versions` and `read_fragment` first.

Beside them: `predicates` and `expression_rules` (SQL expressions), `casting` and `arrow_input`
(what users hand in), `commit_verb` (what all verbs that write share), `open_files`, `field_parts`,
`tags`, `timestamps`.

May import: commit, table, file, storage, schema. No Spark.
"""
