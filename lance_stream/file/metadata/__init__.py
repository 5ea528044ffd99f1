"""The metadata of a data file: the positions of its columns, pages and buffers.

Read `footer` first (the ends of a file), then `columns` (the pages and buffers of each),
`column_table` and `file_metadata`; `stored_pages` are for readers that prefetch pages.
"""
