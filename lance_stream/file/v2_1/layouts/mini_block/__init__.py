"""Mini-block layout: a page's values split into chunks, each decoded as a whole.

Read `mini_block` first, then `chunk_table` (where the chunks are), `chunk_bytes` (the contents of
one) and `neighbouring_pages` (several pages that are decoded together).
"""
