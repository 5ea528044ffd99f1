"""The kind of an index, as users call it: BTREE, INVERTED, IVF_PQ.

    details' type                     kind
    BTreeIndexDetails                 BTREE, and so on, by the table below
    VectorIndexDetails                IVF, then HNSW if it has field 3, then the vectors' codec:
                                      field 4 PQ, 5 SQ, 6 RQ, 8 FLAT
    any other                         its name in capitals, without "IndexDetails"
    none                              UNKNOWN: old writers omitted it

Source: table.proto, IndexMetadata.index_details; the fields of VectorIndexDetails are measured on
        the reference.
"""

from types import MappingProxyType
from typing import Final

from lance_stream.errors import CorruptDataError
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.messages import wire

UNKNOWN: Final = "UNKNOWN"

_SUFFIX: Final = "IndexDetails"
_VECTOR: Final = "Vector"
_KINDS: Final = MappingProxyType(
    {
        "BTree": "BTREE",
        "Bitmap": "BITMAP",
        "LabelList": "LABEL_LIST",
        "Inverted": "INVERTED",
        "NGram": "NGRAM",
        "ZoneMap": "ZONEMAP",
        "BloomFilter": "BLOOMFILTER",
        "RTree": "RTREE",
        "MinHashLsh": "MINHASHLSH",
        "FM": "FM",
    }
)
_HNSW: Final = 3
_CODECS: Final = MappingProxyType({4: "PQ", 5: "SQ", 6: "RQ", 8: "FLAT"})


def kind_of(index: IndexMetadata) -> str:
    """Return the kind of an index, as the reference's functions for creating one spell it."""
    if index.details is None:
        return UNKNOWN
    type_url, details = index.details
    name = type_url.rpartition("/")[2].rpartition(".")[2].removesuffix(_SUFFIX)
    return _vector_kind(details) if name == _VECTOR else _KINDS.get(name, name.upper())


def _vector_kind(details: bytes) -> str:
    try:
        numbers = {field.number for field in wire.split_message(details)}
    except CorruptDataError:
        return "VECTOR"
    codecs = [codec for number, codec in _CODECS.items() if number in numbers]
    if len(codecs) != 1:  # written by an older or a later version of the reference
        return "VECTOR"
    return "_".join(["IVF", *(["HNSW"] if _HNSW in numbers else []), *codecs])
