"""One version of a table, and how the next is derived from it: values and functions of values.

Read `manifest` first, the contents of a version: its `fragments`, whose rows have a `lineage`, its
`indices` (of the kinds in `index_kinds`), and entries of its `config`. `feature_flags`,
`manifest_fields` and `write_ahead_logs` state what a reader or a writer has to understand;
`version_marks` and `detached` tell versions apart whose numbers do not. `messages` reads the bytes.

How the next version is derived: `operations` state what a writer planned, `apply` derives the
version, `conflicts` decides whether it may follow another writer's. `cloning` makes the first
version of a branch. `changes` are the rows in which two versions differ.

`paths` has the names of all files, `named_files` those that a version names.

May import: schema, byte_ranges, errors, _proto. No disk, clock, randomness or Spark.
"""
