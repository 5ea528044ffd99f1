"""File version 0.1, the oldest: all columns in the same batches of rows, without compression.

Read `file_tail` first, then the others in this order:

    file_tail       the last bytes: footer, metadata, the file's schema
    page_table      the position of the page of a column and a batch
    runs            the requested rows of each batch
    read_fields     plain values, byte strings, dictionaries, lists, structs
    write_fields    the same, encoded
    statistics      bounds of the values of each page
    reader          reads a file
    writer          writes a file

Decision 007 describes what the version cannot store.
"""
