"""The format of a data file: pages of columns, from file version 2.0 on. Pure: no disk, no clock.

Read `versions` first, then `metadata` (where everything is stored), `reader` and `writer` (a whole
file), and `blocks` (values on their way). Each version's own package describes the contents of a
page: `v0_1`, `v2_0` (array encodings), `v2_1` (layouts and codecs of 2.1 and 2.2).

May import: errors, byte_ranges, schema, _proto.
"""
