"""File version 0.1, the first: every column in the same batches of rows, values as they are.

    file_tail       the last bytes: footer, metadata, the file's own schema
    page_table      where the page of a column and a batch stands
    runs            which rows of which batches are asked for
    read_fields     plain values, byte strings, dictionaries, lists, structs
    write_fields    the same, encoded
    statistics      bounds of the values of each page
    reader          reading a file
    writer          writing one

Note 007 says what the version cannot hold.
"""
