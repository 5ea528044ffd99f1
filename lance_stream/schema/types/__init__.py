"""Types of columns: the format's names for them, and Arrow's types.

Read `logical_types` first, then `extension_types` (Arrow's), `json_columns` with `jsonb`, and
`dictionaries`; `widening` decides which types a type can be widened to.
"""
