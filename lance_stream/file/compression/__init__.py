"""Compression shared by several file versions: bytes and words in, bytes and words out.

Read `fastlanes` first, then the others in this order:

    fastlanes   words without their leading zero bits
    fsst        byte strings with one-byte codes for frequent pieces
    zstd_lz4    zstd or lz4, prefixed with the uncompressed size

The symbols of FSST have three modules: `fsst_symbols`, `fsst_training` and `fsst_matching`.
`compiled` loads the loops of `kernels` if numba is installed.

Their messages belong to each version. May import `blocks`.
"""
