"""List encoding: the end of each list of a page among the items of the next column.

    offsets     (num_lists,) u64 end offsets, see `end_offsets`, counted from the page's first item
    num_items   items of the page's lists

The items of all pages of the list column are consecutive in the items' column, whose own pages are
independent of them.

Source: encodings_v2_0.proto, message List.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.end_offsets import (
    Spans,
    encode_end_offsets,
    nulls_of,
    offsets_of,
    read_spans,
)
from lance_stream.file.v2_0.encodings.flat import as_bytes, flat_encoding
from lance_stream.file.v2_0.pages import Decode, NewPage, PageBuffers


@dataclass(frozen=True, slots=True)
class ListChunk:
    """One array of lists in its written form: null lists have no items.

    Attributes:
        lists: The array, for its nulls.
        bounds: (num_lists + 1,) the start of each and the end of the last, counted from any
            position.
    """

    lists: pa.Array
    bounds: npt.NDArray[np.signedinteger]

    def slice(self, start: int, stop: int) -> "ListChunk":
        """Return some of the lists, without a copy."""
        return ListChunk(self.lists.slice(start, stop - start), self.bounds[start : stop + 1])


def list_encoding(encoding: pb.ArrayEncoding) -> pb.List:
    """Return the message of a page of a list's column.

    Raises:
        CorruptDataError: It is not a page of lists.
    """
    kind = encoding.WhichOneof("array_encoding")
    if kind != "list":
        raise CorruptDataError(f"a page of a list's column is encoded as {kind!r}")
    return encoding.list


def read_lists(
    encoding: pb.List, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[Spans]:
    """Return the positions of the items of the lists at `rows`, counted from the page's first item.

    Raises:
        CorruptDataError: The offsets are wrong.
    """
    return (
        yield from read_spans(
            lambda rows_needed: decode(encoding.offsets, pa.uint64(), page, rows_needed),
            rows,
            encoding.null_offset_adjustment,
            encoding.num_items,
        )
    )


def encode_lists(chunks: Sequence[ListChunk], page: NewPage) -> pb.ArrayEncoding:
    """Add the end offsets of some arrays of lists."""
    ends = np.empty(sum(len(chunk.lists) for chunk in chunks), np.uint64)
    position, num_items = 0, 0
    for chunk in chunks:
        first, last = int(chunk.bounds[0]), int(chunk.bounds[-1])
        stop = position + len(chunk.lists)
        np.add(chunk.bounds[1:], num_items - first, out=ends[position:stop], casting="unsafe")
        position, num_items = stop, num_items + last - first
    stored, null_adjustment = encode_end_offsets(ends, [chunk.lists for chunk in chunks])
    offsets = flat_encoding(64, page.add([as_bytes(stored)]))
    return pb.ArrayEncoding(
        list=pb.List(
            offsets=pb.ArrayEncoding(
                nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=offsets))
            ),
            null_offset_adjustment=null_adjustment,
            num_items=num_items,
        )
    )


def split_lists(lists: pa.Array) -> tuple[ListChunk, pa.Array]:
    """Split an array of lists into bounds and items, without the items of null lists."""
    bounds = offsets_of(lists)
    if lists.null_count:
        lengths = np.diff(bounds)
        is_null = nulls_of(lists)
        if bool(lengths[is_null].any()):
            ends = np.cumsum(np.where(is_null, 0, lengths), dtype=np.int64)
            return ListChunk(lists, np.append(np.int64(0), ends)), lists.flatten()
    first, last = int(bounds[0]), int(bounds[-1])
    return ListChunk(lists, bounds), lists.values.slice(first, last - first)
