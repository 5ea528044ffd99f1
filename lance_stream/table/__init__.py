"""One version of a table, and how the next is derived from it: values and functions of values.

What a version contains: `manifest` holds `fragments`, whose rows have a `lineage`; `indices`,
entries of its `config`, and `feature_flags`. How the next is derived: `operations` state what a
writer planned, `apply` derives the next version, `conflicts` decides whether it may follow another
writer's. `changes` are the rows in which two versions differ. `paths` names all files; `messages`
reads bytes.

May import: schema, byte_ranges, errors, _proto. No disk, clock, randomness or Spark.
"""
