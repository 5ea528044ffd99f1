"""Blob layout: a page of descriptions of bytes that are stored elsewhere in the file.

The buffers are those of an inner layout, whose values are never null: structs of (position u64,
size u64), packed. A null has size 0 and a nonzero position, its levels:

    position     definition << 16 | repetition

An empty value has position 0 and size 0.

Source:  encodings21.BlobLayout in the proto.
Differs: The reference writes blobs in lists without the lengths of the lists, and fails to read
         them. We refuse them.
"""

from typing import Protocol

import numpy as np
import pyarrow as pa

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.metadata.columns import pack_encoding, unpack_encoding
from lance_stream.file.v2_1.layouts.leaf_rows import LeafColumn, LeafRows, RowSelection
from lance_stream.file.v2_1.layouts.levels import (
    ALL_VALID_ITEM,
    NULLABLE_ITEM,
    Levels,
    check_layers,
    checked_levels,
    layers_of,
)
from lance_stream.file.v2_1.layouts.mini_block.mini_block import ReadChunks
from lance_stream.file.v2_1.layouts.mini_block.neighbouring_pages import decode_pages

NULL_POSITION = 1 << 16
"""The position of a null in a column outside of structs."""


class InnerPage(Protocol):
    """A page, read by its inner layout."""

    def read(self, rows: RowSelection) -> ByteRequests[LeafRows | ReadChunks]:
        """Read some rows, counted in the page; at least one."""
        ...


class BlobPage:
    """A page of descriptions.

    Args:
        message: The page's layout message.
        inner: The page, read by its inner layout.
        leaf: The page's column.

    Raises:
        CorruptDataError: The layers are not the column's.
    """

    def __init__(self, message: pb.BlobLayout, inner: InnerPage, leaf: LeafColumn) -> None:
        self._inner = inner
        self._layers = layers_of(tuple(message.layers))
        check_layers(self._layers, leaf.is_list)

    def read(self, rows: RowSelection) -> ByteRequests[LeafRows]:
        """Read some rows, like the inner layout."""
        read = yield from self._inner.read(rows)
        if isinstance(read, ReadChunks):
            read = decode_pages([read])
        count = len(read.values)
        if read.levels.num_levels != count:
            raise CorruptDataError("descriptions of blobs are in lists, or null")
        positions, sizes = (_words(read.values.field(index)) for index in (0, 1))
        definition = np.where(sizes == 0, positions >> np.uint64(16), 0)
        if (definition > self._layers.max_definition).any():
            raise CorruptDataError(
                f"a blob is null at the level {definition.max()}, but its column has "
                f"{self._layers.max_definition}"
            )
        levels = None if not self._layers.max_definition else definition.astype(np.uint16)
        return LeafRows(checked_levels(Levels(self._layers, None, levels, count)), read.values)


def check_is_description(leaf: LeafColumn) -> None:
    """Check that a column's type is that of descriptions.

    Raises:
        CorruptDataError: It is another type.
    """
    arrow_type = leaf.arrow_type
    if (
        not pa.types.is_struct(arrow_type)
        or [child.type for child in arrow_type] != [pa.uint64()] * 2
    ):
        raise CorruptDataError(f"blobs are stored in a column of the type {arrow_type}")


def check_is_not_in_list(leaf: LeafColumn) -> None:
    """Check that a column of descriptions is not in lists.

    Raises:
        UnsupportedFeatureError: It is.
    """
    if any(leaf.is_list):
        raise UnsupportedFeatureError(
            "blobs in lists are not read from files of version 2.1, which do not have the lengths "
            "of the lists; pylance does not read them either. Write the rows again in version 2.2"
        )


def in_blob_layout(encoding: bytes, *, nullable: bool) -> bytes:
    """Return the encoding of a page of descriptions, given that of its inner layout."""
    layer = NULLABLE_ITEM if nullable else ALL_VALID_ITEM
    message = pb.BlobLayout(
        inner_layout=unpack_encoding(encoding, pb.PageLayout),
        layers=[layer],  # type: ignore[list-item]  # an int is one
    )
    return pack_encoding(pb.PageLayout(blob_layout=message))


def _words(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    words = np.frombuffer(array.buffers()[1] or b"", np.uint64)
    return words[array.offset : array.offset + len(array)]
