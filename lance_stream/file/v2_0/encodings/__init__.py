"""Encodings of pages of file version 2.0, one module each.

    flat                values of one width, one after the other
    bitpacked           the same without their high bits
    nullable            which values are null
    fixed_size_lists    a fixed number of items per value
    packed_structs      the parts of a struct side by side
    binary              byte strings: end offsets and bytes
    fixed_size_binary   byte strings of one length
    fsst                byte strings with codes for frequent pieces
    dictionary          indices and items
    lists               end offsets of lists

Read `flat` first, then `end_offsets`, which byte strings and lists share, and `binary`;
`compressed_buffers` are buffers within zstd or lz4.
"""
