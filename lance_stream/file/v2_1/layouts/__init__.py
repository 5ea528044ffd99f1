"""Layouts of file versions 2.1 and 2.2: the spec's structural encodings.

A column is stored as its leaves only; their nesting (structs, lists, nulls) is described by
repetition and definition levels (`levels`, `level_chunks`, `nesting`), which each page of a leaf
contains in addition to its values. A layout defines the values and levels of one page in its
buffers:

    mini_block   chunks of a few thousand values, each decoded as a whole
    full_zip     values interleaved with their levels, found by position or by an index
    constant     one value or only nulls, with or without levels
    blob         descriptions of bytes that are stored elsewhere in the file

Read `read_fields` and `write_fields` first: the file's reader and writer call them;
`pages` has the table of layouts, `choosing` chooses the layout for writing a page. May import
`codecs`, `file.blocks` and `file.metadata`.
"""

from lance_stream.file.v2_1.layouts.pages import PagesOfColumn
from lance_stream.file.v2_1.layouts.read_fields import read_field, take_field
from lance_stream.file.v2_1.layouts.write_fields import FieldWriter

__all__ = ["FieldWriter", "PagesOfColumn", "read_field", "take_field"]
