"""Dictionary encoding: indices into items.

    indices     (num_values,) integers, never null
    items       num_dictionary_items values

It has two meanings, depending on the column's type:

    a column of plain values        index 0 is null, index i is item i - 1
    a column of a dictionary type   index i is item i; a null is the index of a null item

Plain columns are columns of text: the reference supports only text, and one-byte indices.

Source:  encodings_v2_0.proto, message Dictionary; files that the reference wrote.
Differs: The proto mentions neither meaning.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.binary import is_binary_like
from lance_stream.file.v2_0.encodings.end_offsets import (
    MAX_INT32_OFFSET,
    has_wide_offsets,
    offsets_of,
)
from lance_stream.file.v2_0.encodings.flat import as_bytes, flat_encoding, plain_flat
from lance_stream.file.v2_0.pages import Decode, Encode, NewPage, PageBuffers

_INDEX_TYPES = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def decode_dictionary(
    encoding: pb.Dictionary, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`; all items are read for them.

    Raises:
        CorruptDataError: An index has no item.
        InvalidInputError: The values are too large for one array.
    """
    if encoding.items.nullable.WhichOneof("nullability") == "all_nulls":
        return pa.nulls(len(rows), arrow)
    is_dictionary = pa.types.is_dictionary(arrow)
    indices, items = yield from read_together(
        [
            decode(encoding.indices, _index_type(encoding, arrow), page, rows),
            decode(
                encoding.items,
                arrow.value_type if is_dictionary else arrow,
                page,
                Rows(0, encoding.num_dictionary_items),
            ),
        ]
    )
    if indices.null_count:
        raise CorruptDataError("an index into a dictionary is null")
    positions = indices.to_numpy()
    first = 0 if is_dictionary else 1
    if len(positions) and (int(positions.min()) < 0 or int(positions.max()) - first >= len(items)):
        raise CorruptDataError(
            f"a dictionary has {len(items)} items, but an index of {int(positions.max())} or "
            f"{int(positions.min())} refers to none of them"
        )
    if is_dictionary:
        return _to_dictionary_array(indices, items)
    return _to_plain_array(positions, items)


def encode_dictionary(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage, encode: Encode
) -> pb.ArrayEncoding:
    """Add the indices and items of some arrays that share their dictionary.

    Raises:
        InvalidInputError: There are nulls, but the index type has no free index for them.
    """
    items = chunks[0].dictionary
    null_index = _index_of_null(items)
    if null_index is None and any(chunk.indices.null_count for chunk in chunks):
        null_index = len(items)
        items = pa.concat_arrays([items, pa.nulls(1, arrow.value_type)])
        if null_index > np.iinfo(arrow.index_type.to_pandas_dtype()).max:
            raise InvalidInputError(
                f"{null_index} values and null do not fit into the indices of {arrow}; "
                "use a wider index type, or file version 2.1 or newer"
            )
    indices = [
        chunk.indices.fill_null(pa.scalar(null_index, arrow.index_type))
        if chunk.indices.null_count
        else chunk.indices
        for chunk in chunks
    ]
    return pb.ArrayEncoding(
        dictionary=pb.Dictionary(
            indices=encode(indices, arrow.index_type, page),
            items=encode([items], arrow.value_type, page),
            num_dictionary_items=len(items),
        )
    )


def encode_distinct_texts(
    indices: Sequence[pa.Array], items: pa.Array, page: NewPage, encode: Encode
) -> pb.ArrayEncoding:
    """Add text with few distinct values.

    Args:
        indices: Arrays of int32, each value the position of an item, or null.
        items: The distinct values: text, at most 255 (an index is one byte, and 0 means null), none
            of them null.
        page: Where the buffers are added.
        encode: Encodes the items.
    """
    codes = np.empty(sum(len(index) for index in indices), np.uint8)
    position = 0
    for index in indices:
        positions = index.fill_null(-1).to_numpy()
        np.add(positions, 1, out=codes[position : position + len(index)], casting="unsafe")
        position += len(index)
    return pb.ArrayEncoding(
        dictionary=pb.Dictionary(
            indices=pb.ArrayEncoding(
                nullable=pb.Nullable(
                    no_nulls=pb.Nullable.NoNull(
                        values=flat_encoding(8, page.add([as_bytes(codes)]))
                    )
                )
            ),
            items=encode([items], items.type, page),
            num_dictionary_items=len(items),
        )
    )


def _index_type(encoding: pb.Dictionary, arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(arrow):
        return arrow.index_type
    flat = plain_flat(encoding.indices)
    return _INDEX_TYPES.get(flat.bits_per_value, pa.uint8()) if flat else pa.uint8()


def _to_dictionary_array(indices: pa.Array, items: pa.Array) -> pa.Array:
    """Move nulls from the items to the indices, where Arrow's functions expect them."""
    if items.null_count:
        is_item = items.is_valid().to_numpy(zero_copy_only=False)
        moved = pa.array(np.cumsum(is_item) - 1, mask=~is_item)
        indices = pc.take(moved, indices, boundscheck=False).cast(indices.type)
        # Arrow does not unify dictionaries with null items, as joining two pages takes.
        items = items.drop_null()
    return pa.DictionaryArray.from_arrays(indices, items, safe=False)


def _to_plain_array(positions: npt.NDArray[np.unsignedinteger], items: pa.Array) -> pa.Array:
    if is_binary_like(items.type) and not has_wide_offsets(items.type) and len(items):
        _check_total_bytes(positions, items)
    if len(positions) and int(positions.min()) > 0:
        return pc.take(items, pa.array(positions - 1), boundscheck=False)
    with_null = pa.concat_arrays([pa.nulls(1, items.type), items])
    return pc.take(with_null, pa.array(positions), boundscheck=False)


def _check_total_bytes(positions: npt.NDArray[np.unsignedinteger], items: pa.Array) -> None:
    lengths = np.append(0, np.diff(offsets_of(items)))
    if len(positions) * int(lengths.max()) <= MAX_INT32_OFFSET:
        return
    total = int(lengths[positions].sum())
    if total > MAX_INT32_OFFSET:
        raise InvalidInputError(
            f"{len(positions)} rows have {total} bytes, more than one array of {items.type} can "
            f"contain ({MAX_INT32_OFFSET}); read fewer rows at a time"
        )


def _index_of_null(items: pa.Array) -> int | None:
    if not items.null_count:
        return None
    return int(pc.index(items.is_null(), pa.scalar(value=True)).as_py())
