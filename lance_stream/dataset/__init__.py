"""The verbs on a table, without Spark.

`dataset` has the object that users hold; each of its verbs is a module: `opening`, `scan`, `take`,
`changes`, `append`, `overwrite`, `update`, `delete`, `restore`, `create`, `add_columns`,
`configure`, `history`, `verify`; two are packages: `upserts` and `compaction`. What a worker does
for them is in `read_fragment` and `write_fragments`: both take picklable values and need nothing
else. Read `table_versions` and `read_fragment` first.

Beside them: `predicates` and `expression_rules` (SQL expressions), `casting` and `arrow_input`
(what users hand in), `commit_verb` (what all verbs that write share), `micro_batches` (which batch
of which stream), `changed_rows` (rows that leave their places), `write_jobs` (what many workers
write and one commits), `open_files`, `field_parts`, `phases`, `tags`, `timestamps`, `ages`.

May import: commit, table, file, storage, schema. No Spark.
"""
