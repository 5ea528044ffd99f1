"""File version 0.1, the first: every column in the same batches of rows, plain values.

Read `file_tail` first, then the others in this order:

    file_tail       the last bytes: footer, metadata, the file's own schema
    page_table      the position of the page of a column and a batch
    runs            the requested rows of each batch
    read_fields     plain values, byte strings, dictionaries, lists, structs
    write_fields    the same, encoded
    statistics      bounds of the values of each page
    reader          reading a file
    writer          writing one

Decision 007 describes what the version cannot store.
"""
