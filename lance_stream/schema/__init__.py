"""Names and types of columns: pure values, no bytes of data.

Read `fields` first (the tree of columns that a manifest and a data file store, and their ids), then
`types` (the format's type names, and Arrow's), `arrow_schemas` (Arrow schema to tree and back),
`identity` (which fields are the same column), `projections` (part of a tree), `system_columns`.

May import: errors, _proto.
"""
