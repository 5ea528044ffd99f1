"""Data files of version 2.0: a tree of array encodings for each page.

Every field has a column, parents too: a list's column contains the end of each list, its items are
rows of the next column; a struct's column is empty. A tree of encodings describes the pages of a
field's own column, one module each:

    flat                values of one width, one after the other
    nullable            which of them are null
    fixed_size_lists    a fixed number of items per value
    binary              byte strings: end offsets and bytes
    fixed_size_binary   byte strings of one length
    dictionary          indices and items
    lists               end offsets of lists

Read `rows` first (which rows are requested), then `pages`, `flat`, `end_offsets` and the codecs;
`array_encodings` is the table of them; `read_fields` and `write_fields` put columns together.

May import: errors, byte_ranges, schema, file.columns, _proto.
"""
