"""Pages of the leaves of one top-level field, from its rows."""

import pyarrow as pa

from lance_stream.file.columns import EncodedPage
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field


class FieldWriter:
    """Gathers the rows of a top-level field until they make pages.

    Args:
        field: The field, with its children.
        version: 2.1 or 2.2.
        max_page_bytes: A page is made once about so many bytes of rows have come together.
    """

    def __init__(self, field: Field, version: FileVersion, max_page_bytes: int) -> None:
        self._field = field
        self._version = version
        self._max_page_bytes = max_page_bytes

    def append(self, array: pa.Array) -> list[EncodedPage]:
        """Take in rows, of exactly the field's Arrow type; return the pages that are full.

        The array's buffers may be referred to by the pages: they are not copied when avoidable.
        """
        raise NotImplementedError

    def finish(self) -> list[EncodedPage]:
        """Return the pages of the rows that are left."""
        raise NotImplementedError
