"""One version of a table, and how the next is derived from it: values and functions of values.

Read `fragments`, `row_ids`, `row_versions`, `deletion_vectors` and `manifest` for the contents of a
version; `operations` and `transaction` for what changes it; `conflicts`, `rebase` and `apply` for
the next version; `diff` for the changes between two.

May import: schema, byte_ranges, errors, _proto. No disk, clock, randomness or Spark.
"""
