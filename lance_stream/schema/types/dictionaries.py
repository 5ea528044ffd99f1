"""The values of dictionary columns, as manifests and data files of version 0.1 store them.

A dictionary applies to the whole table, and every data file repeats it. Integers are stored one
after another; byte strings as

    bytes       one value after another
    ends        i64 positions in the file where each value begins and the last one ends; the
                dictionary's position is that of the ends

An empty byte string is read as null.

Source: file.proto, message Dictionary; manifests that the reference wrote.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.errors import CorruptDataError, InvalidInputError


def encode_dictionary(values: pa.Array, start: int) -> tuple[bytes, int]:
    """Return the bytes of a dictionary, and its position.

    Args:
        values: Integers, or byte strings.
        start: The position at which the bytes will be written.

    Raises:
        InvalidInputError: Version 0.1 has no dictionaries of this type.
    """
    if pa.types.is_integer(values.type):
        return values.to_numpy(zero_copy_only=False).tobytes(), start
    if not is_byte_string(values.type):
        raise InvalidInputError(
            f"files of version 0.1 cannot store a dictionary of {values.type}; use plain values, "
            "or version 2.0"
        )
    data, ends = bytes_and_offsets(values)
    return data + (ends + start).tobytes(), start + len(data)


def decode_dictionary(arrow: pa.DataType, data: bytes, start: int, length: int) -> pa.Array:
    """Return the values of a dictionary.

    Args:
        arrow: Their type.
        data: The whole file.
        start: The dictionary's position.
        length: The number of values.

    Raises:
        CorruptDataError: The values extend past the file, or a text is not UTF-8.
    """
    if length == 0:
        return pa.array([], arrow)
    is_plain = pa.types.is_integer(arrow)
    width = arrow.bit_width // 8 if is_plain else 8
    stop = start + (length if is_plain else length + 1) * width
    if start < 0 or length < 0 or stop > len(data) or not (is_plain or is_byte_string(arrow)):
        raise CorruptDataError(
            f"a dictionary of {length} values of {arrow} would begin at byte {start} of {len(data)}"
        )
    stored = data[start:stop]
    if is_plain:
        return pa.Array.from_buffers(arrow, length, [None, pa.py_buffer(stored)])
    ends = np.frombuffer(stored, "<i8")
    if int(ends[0]) < 0 or int(ends[-1]) > len(data) or bool((ends[1:] < ends[:-1]).any()):
        raise CorruptDataError(f"the values of a dictionary of {arrow} are not within the file")
    is_large = pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow)
    offsets = (ends - ends[0]).astype(np.int64 if is_large else np.int32)
    validity = np.packbits(ends[1:] > ends[:-1], bitorder="little")
    text = data[int(ends[0]) : int(ends[-1])]
    array = pa.Array.from_buffers(
        arrow, length, [pa.py_buffer(buffer) for buffer in (validity, offsets, text)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptDataError(f"a dictionary has a text that is not UTF-8: {error}") from None
    return array


def bytes_and_offsets(array: pa.Array) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the bytes of an array of byte strings, and the (n + 1,) offsets of its values.

    A null has no bytes.
    """
    if array.null_count:
        array = array.fill_null(b"" if "binary" in str(array.type) else "")
    _, offsets, data = array.buffers()
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = np.int64 if is_large else np.int32
    if not len(array):
        return b"", np.zeros(1, np.int64)
    stored = np.frombuffer(offsets, width, len(array) + 1, array.offset * width().itemsize)
    ends: npt.NDArray[np.int64] = stored.astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    return (bytes(memoryview(data)[first:last]) if last > first else b""), ends - first


def is_byte_string(arrow: pa.DataType) -> bool:
    """Return whether a type is text or binary of variable width."""
    return arrow in {pa.string(), pa.binary(), pa.large_string(), pa.large_binary()}
