"""What one data file is: pages of columns, from file version 2.0 on. Pure: no disk, no clock.

Read `versions` first, then `footer` (where everything stands), `columns` (pages and buffers),
`reader` and `writer` (a whole file). How a page holds its values is told by the version's own
package: `v0_1`, `v2_0` (array encodings), `v2_1` (layouts and codecs of 2.1 and 2.2).

May import: errors, byte_ranges, schema, _proto.
"""
