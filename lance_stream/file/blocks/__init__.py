"""Blocks: values without nulls, between the bytes of a file and Arrow's arrays.

Read `data_blocks` first, then `arrow_blocks` (to Arrow and back), `chunked_buffers` (pieces that
are processed together) and `scattered_bytes` (pieces that are read together).
"""
