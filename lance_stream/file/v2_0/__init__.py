"""File version 2.0: a tree of array encodings describes each page.

Every field has a column, parents too: a list's column contains the end of each list, its items are
rows of the next column; a struct's column is empty. A tree of encodings describes the pages of a
field's own column; `encodings` has one module each.

Read `encodings` first, then `pages` (the input of a decoder) and `array_encodings`, the table of
them; `read_fields` and `write_fields` put columns together, `choose` selects encodings. A file's
reader calls `field_reader`, which keeps `paged_columns`; `indices_ahead` saves rounds of requests.
"""
