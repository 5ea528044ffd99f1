"""The table format: a version of a table, and how the next version is derived. Pure functions.

Read `manifest` first, the contents of a version: its `fragments`, whose rows have a `lineage`, its
`indices` (of the kinds in `index_kinds`), and entries of its `config`. `feature_flags`,
`manifest_fields` and `write_ahead_logs` define what a reader or a writer must understand;
`version_marks` and `detached` distinguish versions with equal numbers. `messages` reads the bytes.

An operation (`operations`) is what a writer planned, `apply` derives the next version from it, and
`conflicts` decides whether it may follow another writer's version. `cloning` creates the first
version of a branch. `changes` finds the rows in which two versions differ.

`paths` has the names of all files, `named_files` lists the files that a version references.

No disk, clock, randomness or Spark.
"""
