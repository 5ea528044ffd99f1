"""What one version of a table is, and how one follows another: values and functions of values.

Read `fragments`, `row_ids`, `row_versions`, `deletion_vectors` and `manifest` for what a version
holds; `operations` and `transaction` for what is done to it; `conflicts`, `rebase` and `apply`
for how versions follow one another; `diff` for what changed between two.

May import: schema, byte_ranges, errors, _proto. No disk, clock, chance or Spark.
"""
