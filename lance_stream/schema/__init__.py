"""Names and types of columns: pure values, no bytes of data.

Read `fields` first (the tree of columns that a manifest and a data file store, and their ids), then
`types` (the format's type names, and Arrow's) and `arrow_schemas` (Arrow schema to tree and back).
`identity` states which fields of two schemas are the same column, `projections` select parts of a
tree. `column_names`, `column_paths` and `primary_keys` have the rules for names and keys;
`system_columns`, `blobs`, `computed_columns` and `declarations` are columns with a special
meaning.
"""
