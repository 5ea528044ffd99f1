"""The result of encoding a page: its layout message and its buffers."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream._proto import encodings_v2_1_pb2 as pb


class EncodedLayout(NamedTuple):
    """A page, without its position in a file.

    Attributes:
        message: Its layout message.
        buffers: Its buffers, each in consecutive parts.
    """

    message: pb.PageLayout
    buffers: tuple[tuple[memoryview, ...], ...]


def part(array: npt.NDArray[np.generic]) -> tuple[memoryview, ...]:
    """Return a buffer of one part: the bytes of an array, without a copy."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return (data.data,)
