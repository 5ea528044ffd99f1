"""Names and types of columns: pure values, no bytes of data.

Read `fields` first (the tree of columns that a manifest and a data file store), then
`logical_types` (the format's type names), `extension_types` (Arrow's), `arrow_schemas` (Arrow
schema to tree and back), `field_ids` (who numbers fields), `projections` (part of a tree),
`system_columns`.

May import: errors, _proto.
"""
