"""Blocks: values without nulls, the intermediate form between a file's bytes and Arrow arrays.

Read `data_blocks` first, then `arrow_blocks` (to Arrow and back), `chunked_buffers` (pieces that
are processed together) and `scattered_bytes` (pieces that are read together).
"""
