"""The format of a data file: pages of columns, from file version 2.0 on. Pure: no disk, no clock.

Read `versions` first, then `metadata` (where everything is stored), `reader` and `writer` (a whole
file), `rows` (which rows are requested), `paged_file` (the common part of versions 2.x) and
`blocks` (values on their way). Each version's own package describes the contents of a page: `v0_1`,
`v2_0` (array encodings), `v2_1` (layouts and codecs of 2.1 and 2.2); `compression` is what several
of them use.

`type_support` and `encoding_options` state what a file can hold; `blobs`, `packed_parts` and
`nested_arrays` are columns with parts; `known_ranges` are bytes that need no second request.

May import: errors, arrays, byte_ranges, schema, _proto.
"""
