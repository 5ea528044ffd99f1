"""One value buffer of many mini-block chunks, as codecs see it.

The chunks of a page lie one behind the other, each with a header and padding between its buffers.
A codec is given all chosen chunks at once, so that it can work on them in one go.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream.errors import CorruptDataError
from lance_stream.file.data_blocks import Bytes

Counts = npt.NDArray[np.int64]


class ChunkedBuffer(NamedTuple):
    """The bytes that one value buffer has in each of the chosen chunks.

    Args:
        data: Bytes that hold them all, with anything between them.
        starts: (num_chunks,) where in `data` each chunk's bytes start.
        sizes: (num_chunks,) how many they are.
    """

    data: Bytes
    starts: Counts
    sizes: Counts


def checked(buffer: ChunkedBuffer, num_values: Counts) -> ChunkedBuffer:
    """Return the buffer, once its chunks lie inside its bytes and are as many as the counts.

    Raises:
        CorruptDataError: They do not or are not.
    """
    if not len(buffer.starts) == len(buffer.sizes) == len(num_values):
        raise CorruptDataError(
            f"{len(num_values)} chunks, but {len(buffer.starts)} starts and "
            f"{len(buffer.sizes)} sizes of their buffers"
        )
    if len(buffer.starts) and (
        min(buffer.starts.min(), buffer.sizes.min(), num_values.min()) < 0
        or (buffer.starts > len(buffer.data)).any()
        or (buffer.sizes > len(buffer.data) - buffer.starts).any()
    ):
        raise CorruptDataError(
            f"a chunk's buffer does not lie inside the {len(buffer.data)} bytes of its page"
        )
    return buffer


def joined(buffer: ChunkedBuffer) -> Bytes:
    """Return the bytes of all chunks one after the other; a view if they touch already."""
    stops = buffer.starts + buffer.sizes
    if len(stops) == 0:
        return buffer.data[:0]
    if (buffer.starts[1:] == stops[:-1]).all():
        return buffer.data[int(buffer.starts[0]) : int(stops[-1])]
    view = memoryview(buffer.data)
    return np.frombuffer(
        b"".join(
            [
                view[start:stop]
                for start, stop in zip(buffer.starts.tolist(), stops.tolist(), strict=True)
            ]
        ),
        dtype=np.uint8,
    )
