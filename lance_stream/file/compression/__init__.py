"""Compression that more than one file version stores: bytes and words in, bytes and words out.

    fastlanes   words without their high zero bits
    fsst        byte strings in which frequent pieces are one byte each
    zstd_lz4    bytes by zstd or lz4, with their raw size in front

What a version's message says of them belongs to the version. May import `data_blocks`,
`chunked_buffers`.
"""
