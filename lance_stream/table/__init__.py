"""One version of a table, and how the next is derived from it: values and functions of values.

Read `manifest` first, the contents of a version: its `fragments`, whose rows have a `lineage`, its
`indices`, and entries of its `config`. `feature_flags` and `manifest_fields` state what a reader
has to understand; `messages` reads the bytes.

How the next version is derived: `operations` state what a writer planned, `apply` derives the
version, `conflicts` decides whether it may follow another writer's. `cloning` makes the first
version of a branch. `changes` are the rows in which two versions differ.

`paths` has the names of all files, `named_files` those that a version names.

May import: schema, arrays, byte_ranges, errors, _proto. No disk, clock, randomness or Spark.
"""
