"""What a file states about itself: where its columns, pages and buffers are.

Read `footer` first (the ends of a file), then `columns` (the pages and buffers of each),
`column_table` and `file_metadata`; `stored_pages` are for readers that fetch pages ahead.
"""
