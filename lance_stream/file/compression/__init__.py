"""Compression used by more than one file version: bytes and words in, bytes and words out.

    fastlanes   words without their high zero bits
    fsst        byte strings with one-byte codes for frequent pieces
    zstd_lz4    bytes by zstd or lz4, with their raw size in front

Their messages belong to each version. May import `data_blocks`,
`chunked_buffers`.
"""
