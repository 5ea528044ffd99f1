"""Reads the sizes of data files from the messages of many fragments at once.

    fragment message     files: path, fields, columns, size in bytes
    one file             read in a few numpy steps (`wire_columns`); most fragments
    several files        parsed individually

Source: table.proto, messages DataFragment and DataFile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from lance_stream._proto import table_pb2
from lance_stream.arrays import Counts, Mask
from lance_stream.table.messages import wire
from lance_stream.table.messages.wire_columns import Spans, walk

_FILES = 2
_SIZE = 6
_MAX_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The data files of n fragments, in order.

    Attributes:
        num_files: (n,) the number of files.
        num_bytes: (n,) the total size in bytes, without files of unknown size.
        are_complete: (n,) whether the sizes of all files are known; old writers omitted them.
    """

    num_files: Counts
    num_bytes: Counts
    are_complete: Mask

    @property
    def total(self) -> int | None:
        """The size of all files in bytes; None if one is unknown."""
        return sum(self.num_bytes.tolist()) if bool(self.are_complete.all()) else None

    @classmethod
    def of(cls, raws: Sequence[bytes]) -> "FileSizes":
        """Return the sizes of fragments' files.

        Args:
            raws: The bytes of the DataFragment messages.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged. Not all damage is detected here.
        """
        data = np.frombuffer(b"".join(raws), np.uint8)
        stops = np.fromiter(accumulate(map(len, raws)), np.int64, len(raws))
        starts = np.concatenate([np.zeros(1, np.int64), stops])[: len(raws)]
        fragments = walk(data, Spans(starts, stops), (), (_FILES,))
        spans = fragments.spans[_FILES]
        has_one = ~fragments.is_odd & (spans.starts >= 0)
        files = walk(data, Spans(spans.starts[has_one], spans.stops[has_one]), (_SIZE,))
        num_bytes = np.zeros(len(raws), np.int64)
        is_plain = ~files.is_odd & (files.numbers[_SIZE] <= _MAX_BYTES)
        num_bytes[has_one] = np.where(is_plain, files.numbers[_SIZE], 0).astype(np.int64)
        is_odd = fragments.is_odd.copy()
        is_odd[has_one] |= ~is_plain
        result = cls(has_one.astype(np.int64), num_bytes, (num_bytes > 0) | ~has_one)
        for index in np.flatnonzero(is_odd).tolist():
            message = wire.parse_message(table_pb2.DataFragment, raws[index])
            sizes = [file.file_size_bytes for file in message.files]
            result.num_files[index] = len(sizes)
            result.num_bytes[index] = min(sum(sizes), _MAX_BYTES)
            result.are_complete[index] = all(sizes)
        return result
