"""The format of data files: encodes and decodes all file versions. Pure: no disk, no clock.

Read `versions` first, then `metadata` (where everything is stored), `reader` and `writer` (a whole
file), `rows` (which rows are requested), `paged_file` (the common part of versions 2.x) and
`blocks` (values in transit). The package of a version describes the contents of a page: `v0_1`,
`v2_0` (array encodings), `v2_1` (layouts and codecs of 2.1 and 2.2); `compression` is shared by
several versions.

`type_support` and `encoding_options` state what a file can hold; `blobs`, `packed_parts` and
`nested_arrays` are for nested columns; `cached_ranges` are bytes that need no further request.
"""
