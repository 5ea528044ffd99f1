"""Layouts of file versions 2.1 and 2.2: the spec's structural encodings.

A column is stored as its leaves only; how leaves are nested (structs, lists, nulls) is told by
repetition and definition levels (`levels`, `nesting`) that each page of a leaf holds beside its
values. A layout says how values and levels of one page lie in its buffers:

    mini_block   chunks of some thousand values, each decoded as a whole
    full_zip     each value beside its own levels, found by its place or by an index
    constant     one value, or none at all, with or without levels

Read `read_fields` and `write_fields` first: they are what the file's reader and writer call;
`pages` has the table of layouts, `choose` decides which layout a page is written in. May import
`codecs`, `arrow_blocks`, `data_blocks` and `columns`.
"""

from lance_stream.file.v2_1.layouts.pages import PagesOfColumn
from lance_stream.file.v2_1.layouts.read_fields import read_field, take_field
from lance_stream.file.v2_1.layouts.write_fields import FieldWriter

__all__ = ["FieldWriter", "PagesOfColumn", "read_field", "take_field"]
