"""Blob columns, and the descriptions that stand for them in data files."""

import pyarrow as pa

from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.blobs import with_descriptions

BLOB = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
PLAIN = pa.field("s", pa.struct([pa.field("x", pa.int64())]))


def test_plain_schemas_stay_unchanged() -> None:
    """A schema computes its Arrow form once; a copy per fragment would compute it per fragment."""
    schema = from_arrow(pa.schema([PLAIN]))
    assert with_descriptions(schema) is schema


def test_only_blob_columns_become_descriptions() -> None:
    """Data files of version 2.0 hold position and size for a blob, and ordinary columns stay
    untouched.
    """
    schema = from_arrow(pa.schema([PLAIN, BLOB]))
    plain, blob = with_descriptions(schema).fields
    assert plain is schema.fields[0]
    assert [child.name for child in blob.children] == ["position", "size"]
