"""The kinds of indices, by the types and fields of their details."""

import pytest

from lance_stream.table.index_kinds import kind_of
from lance_stream.table.indices import IndexMetadata


def kind(details: tuple[str, bytes] | None) -> str:
    return kind_of(IndexMetadata(bytes(16), (1,), "x", 1, details=details))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BTree", "BTREE"),
        ("Bitmap", "BITMAP"),
        ("LabelList", "LABEL_LIST"),
        ("Inverted", "INVERTED"),
        ("NGram", "NGRAM"),
        ("ZoneMap", "ZONEMAP"),
        ("BloomFilter", "BLOOMFILTER"),
        ("RTree", "RTREE"),
        ("MinHashLsh", "MINHASHLSH"),
        ("FM", "FM"),
        ("Vector", "VECTOR"),
        ("FromTheFuture", "FROMTHEFUTURE"),
    ],
)
def test_kinds_follow_from_the_type(name: str, expected: str) -> None:
    """Packages and hosts differ between releases of the reference, the names do not."""
    for prefix in "", "/", "/lance.table.", "type.googleapis.com/lance.index.pb.":
        assert kind((f"{prefix}{name}IndexDetails", b"")) == expected


def test_old_indices_have_no_kind() -> None:
    """Their writers omitted the details."""
    assert kind(None) == "UNKNOWN"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([4], "IVF_PQ"),
        ([5], "IVF_SQ"),
        ([6], "IVF_RQ"),
        ([8], "IVF_FLAT"),
        ([1, 2, 3, 4, 7], "IVF_HNSW_PQ"),
        ([3, 5], "IVF_HNSW_SQ"),
        ([3, 8], "IVF_HNSW_FLAT"),
        ([], "VECTOR"),
        ([3], "VECTOR"),
        ([7, 9], "VECTOR"),
        ([4, 5], "VECTOR"),
        (None, "VECTOR"),
    ],
)
def test_vector_kinds_follow_from_fields(fields: list[int] | None, expected: str) -> None:
    """Without exactly one codec, or with damaged details, only the family is known."""
    empty = b"".join(bytes([number << 3 | 2, 0]) for number in fields or [])
    damaged = bytes([4 << 3 | 2, 9])
    assert kind(("/VectorIndexDetails", damaged if fields is None else empty)) == expected
