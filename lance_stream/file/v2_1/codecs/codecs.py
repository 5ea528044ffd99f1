"""The compressive encodings of file versions 2.1 and 2.2, by their names in the proto.

A codec is asked for in one of three positions:

    mini-block   all chosen chunks of a page at once, each with one to three value buffers
    block        one buffer that is always read whole: dictionaries, levels, constants
    per value    the values of a full-zip page, after they were parted from their levels

`CODECS` says which codec can stand where, `REFUSED` which we do not know at all. An encoding is a
tree (FSST over variable, general over anything): this module walks the tree, the modules beside it
know one codec's bytes each, and no proto.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from lance_stream._proto.encodings_v2_1_pb2 import (
    COMPRESSION_ALGORITHM_LZ4,
    COMPRESSION_ALGORITHM_ZSTD,
    BufferCompression,
    ByteStreamSplit,
    CompressiveEncoding,
    Constant,
    FixedSizeList,
    Flat,
    Fsst,
    General,
    InlineBitpacking,
    OutOfLineBitpacking,
    PackedStruct,
    Rle,
    Variable,
    VariablePackedStruct,
)
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.chunked_buffers import (
    ChunkedBuffer,
    Counts,
    check_chunks,
    joined,
)
from lance_stream.file.compression import fsst, zstd_lz4
from lance_stream.file.compression.fsst_symbols import (
    decode_symbol_table,
    encode_symbol_table,
)
from lance_stream.file.data_blocks import (
    WORDS,
    Bytes,
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    StructBlock,
    VariableWidthBlock,
)
from lance_stream.file.v2_1.codecs import (
    bitpacking,
    byte_stream_split,
    constant,
    fixed_size_list,
    flat,
    packed_struct,
    rle,
    variable,
)
from lance_stream.file.v2_1.codecs.fixed_size_list import ListLayer, ListLayout

MAX_CHUNK_VALUES = 4096
"""Values of a mini-block chunk at most, as the reference writes them (it reads 32,768)."""

MAX_CHUNK_BYTES = 8 * 1024 - 6
"""Bytes of values that the reference aims to stay below in a mini-block chunk."""

ValueBlock: TypeAlias = FixedWidthBlock | VariableWidthBlock
B = TypeVar("B")


class EncodedMiniBlock(NamedTuple):
    """A page's values, cut into mini-block chunks.

    Args:
        encoding: How, for the page's layout message.
        buffers: The value buffers, one or more, each with its place in every chunk; sizes are
            not padded to 8.
        num_values: (num_chunks,) values of each chunk: powers of two from 2 on, but for the last.
    """

    encoding: CompressiveEncoding
    buffers: tuple[ChunkedBuffer, ...]
    num_values: Counts


class EncodedBlock(NamedTuple):
    """Values in one buffer that is always read whole.

    Args:
        encoding: How, for the page's layout message.
        data: The buffer.
        num_values: How many values it holds.
    """

    encoding: CompressiveEncoding
    data: Bytes
    num_values: int


class EncodedValues(NamedTuple):
    """Values that were encoded one by one, for a full-zip page.

    Args:
        encoding: How, for the page's layout message.
        values: What each has become: of one width, or byte strings.
    """

    encoding: CompressiveEncoding
    values: ValueBlock


@dataclass(frozen=True, slots=True)
class Codec:
    """Where a codec can stand, and what decodes it there; None: it cannot stand there.

    Args:
        mini_block: (message, value buffers, values of each chunk) to a block.
        block: (message, buffer, number of values) to a block.
        per_value: (message, encoded values) to a block.
        num_mini_block_buffers: (message) to the number of value buffers.
        pick: (message, value buffers, values of each chunk, places) to a block of single values;
            None: they are not to be had by themselves.
    """

    mini_block: Callable[[Any, Sequence[ChunkedBuffer], Counts], DataBlock] | None = None
    block: Callable[[Any, Bytes, int], DataBlock] | None = None
    per_value: Callable[[Any, ValueBlock], DataBlock] | None = None
    num_mini_block_buffers: Callable[[Any], int] = lambda _: 1
    pick: Callable[[Any, Sequence[ChunkedBuffer], Counts, Counts], DataBlock | None] | None = None


def num_mini_block_buffers(encoding: CompressiveEncoding) -> int:
    """Return how many value buffers each mini-block chunk of this encoding has.

    Raises:
        BadDataError: No known encoding, or none that can stand in a mini-block.
    """
    codec, message = _codec_of(encoding)
    _at_position(codec.mini_block, encoding, "a mini-block page")
    return codec.num_mini_block_buffers(message)


def decode_mini_block(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    """Decode the chosen chunks of a mini-block page.

    Args:
        encoding: The page's value compression.
        buffers: Its value buffers, `num_mini_block_buffers(encoding)` of them.
        num_values: (num_chunks,) how many values each chunk holds.

    Returns:
        The values of all chunks, in order.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    codec, message = _codec_of(encoding)
    decode = _at_position(codec.mini_block, encoding, "a mini-block page")
    if len(buffers) != codec.num_mini_block_buffers(message):
        raise CorruptDataError(
            f"a mini-block page encoded by {_name_of(encoding)} needs "
            f"{codec.num_mini_block_buffers(message)} value buffers, but has {len(buffers)}"
        )
    check_chunks(buffers, num_values)
    return decode(message, buffers, num_values)


def pick_mini_block(
    encoding: CompressiveEncoding,
    buffers: Sequence[ChunkedBuffer],
    num_values: Counts,
    places: Counts,
) -> DataBlock | None:
    """Decode single values of the chosen chunks of a mini-block page.

    Args:
        encoding: As in `decode_mini_block`.
        buffers: As in `decode_mini_block`.
        num_values: As in `decode_mini_block`.
        places: Which values, counted over all chunks.

    Returns:
        None if the codec has no way that is shorter than to decode whole chunks.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    codec, message = _codec_of(encoding)
    if codec.pick is None or len(buffers) != codec.num_mini_block_buffers(message):
        return None
    check_chunks(buffers, num_values)
    return codec.pick(message, buffers, num_values, places)


def decode_block(
    encoding: CompressiveEncoding, buffer: Bytes | memoryview | bytes, num_values: int
) -> DataBlock:
    """Decode a buffer that is always read whole: a dictionary's items, a chunk's levels.

    Args:
        encoding: How it is encoded.
        buffer: All its bytes and no others.
        num_values: How many values it holds. The caller has checked it against something that
            exists, if the encoding is a constant.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    codec, message = _codec_of(encoding)
    decode = _at_position(codec.block, encoding, "a block")
    if num_values < 0:
        raise CorruptDataError(f"a block of {num_values} values")
    return decode(message, np.frombuffer(buffer, dtype=np.uint8), num_values)


def decode_per_value(encoding: CompressiveEncoding, block: ValueBlock) -> DataBlock:
    """Decode the values of a full-zip page, each of which was encoded by itself.

    Args:
        encoding: The page's value compression.
        block: The encoded values: of `bits_per_value` of the layout, or variable ones, without
            their length words. Its offsets have been checked.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    codec, message = _codec_of(encoding)
    return _at_position(codec.per_value, encoding, "a full-zip page")(message, block)


def encode_mini_block(
    block: DataBlock,
    *,
    max_chunk_values: int = MAX_CHUNK_VALUES,
    max_chunk_bytes: int = MAX_CHUNK_BYTES,
) -> EncodedMiniBlock:
    """Cut values into mini-block chunks, without compression.

    Args:
        block: Fixed width, variable width or fixed-size list; at least one value.
        max_chunk_values: A chunk's values at most, from 2 on.
        max_chunk_bytes: A chunk's bytes of values at most. A chunk of two byte strings may be
            larger.

    Raises:
        InvalidInputError: Two values of fixed width are larger than a chunk.
    """
    if not 2 <= max_chunk_values <= 1 << 15:
        raise InvalidInputError(f"a mini-block chunk cannot have {max_chunk_values} values")
    limits = {"max_chunk_values": max_chunk_values, "max_chunk_bytes": max_chunk_bytes}
    if isinstance(block, FixedSizeListBlock):
        buffers, num_values = fixed_size_list.encode_chunks(block, **limits)
        return EncodedMiniBlock(_encoding_of(block), buffers, num_values)
    if isinstance(block, StructBlock):
        encoding, rows = _encode_packed(block)
        rows = _fixed(rows, "packed_struct")
        buffer, num_values = flat.encode_chunks(rows, **limits)
        return EncodedMiniBlock(encoding, (buffer,), num_values)
    if isinstance(block, FixedWidthBlock):
        buffer, num_values = flat.encode_chunks(block, **limits)
    elif isinstance(block, VariableWidthBlock):
        buffer, num_values = variable.encode_chunks(block, **limits)
    else:
        raise InvalidInputError(f"a {type(block).__name__} cannot be cut into chunks")
    return EncodedMiniBlock(_encoding_of(block), (buffer,), num_values)


def encode_bitpacked(block: FixedWidthBlock) -> EncodedMiniBlock:
    """Cut words of 8, 16, 32 or 64 bits into mini-block chunks of 1,024, packed in-line.

    Whether that saves anything is for the caller to know (`bitpacking.chunk_widths`).
    """
    buffer, num_values = bitpacking.encode_inline_chunks(block)
    encoding = CompressiveEncoding(
        inline_bitpacking=InlineBitpacking(uncompressed_bits_per_value=block.bits_per_value)
    )
    return EncodedMiniBlock(encoding, (buffer,), num_values)


def compress_mini_block(
    encoded: EncodedMiniBlock, scheme: str, level: int | None = None
) -> EncodedMiniBlock:
    """Put general compression around the first value buffer of each chunk.

    Args:
        encoded: The chunks.
        scheme: "zstd" or "lz4".
        level: How hard zstd tries; None: as it pays.
    """
    first, *others = encoded.buffers
    return EncodedMiniBlock(
        _general(encoded.encoding, scheme, level),
        (zstd_lz4.encode_chunks(first, scheme, level), *others),
        encoded.num_values,
    )


def compress_block(encoded: EncodedBlock, scheme: str, level: int | None = None) -> EncodedBlock:
    """Put general compression around a block; arguments as in `compress_mini_block`."""
    return EncodedBlock(
        _general(encoded.encoding, scheme, level),
        zstd_lz4.encode(encoded.data, scheme, level),
        encoded.num_values,
    )


def compress_per_value(
    block: VariableWidthBlock, scheme: str, level: int | None = None
) -> EncodedValues:
    """Put general compression around each value; arguments as in `compress_mini_block`."""
    return EncodedValues(
        _general(_encoding_of(block), scheme, level),
        zstd_lz4.encode_per_value(block, scheme, level),
    )


def encode_runs(block: FixedWidthBlock, max_chunk_bytes: int) -> EncodedMiniBlock:
    """Cut words of 8, 16, 32 or 64 bits into mini-block chunks of one size, as runs.

    Args:
        block: The values.
        max_chunk_bytes: A chunk's bytes at most; at least those of two values and their lengths.
    """
    most = MAX_CHUNK_VALUES
    while True:
        num_values = flat.chunk_counts(
            block.num_values,
            bits_per_value=block.bits_per_value,
            max_chunk_values=most,
            max_chunk_bytes=most * block.bits_per_value // 8,
        )
        buffers = rle.encode_chunks(block.words(), num_values)
        if most == 2 or int((buffers[0].sizes + buffers[1].sizes).max()) <= max_chunk_bytes:
            break
        most //= 2
    return EncodedMiniBlock(rle_encoding(block.bits_per_value), buffers, num_values)


def encode_split(block: FixedWidthBlock) -> EncodedMiniBlock:
    """Cut words of 32 or 64 bits into mini-block chunks, split into their bytes."""
    buffer, num_values = byte_stream_split.encode_chunks(block)
    flat_values = _encoding_of(block)
    encoding = CompressiveEncoding(byte_stream_split=ByteStreamSplit(values=flat_values))
    return EncodedMiniBlock(encoding, (buffer,), num_values)


def encode_block_of_runs(block: FixedWidthBlock) -> EncodedBlock:
    """Encode words of 8, 16, 32 or 64 bits as runs, in one buffer."""
    encoding = rle_encoding(block.bits_per_value)
    return EncodedBlock(encoding, rle.encode(block.words()), block.num_values)


def encode_packed_block(block: FixedWidthBlock, width: int) -> EncodedBlock:
    """Pack words of 8, 16, 32 or 64 bits, all less than 2 to the `width`, into one buffer.

    Args:
        block: The values.
        width: From 1 to one less than their bits.
    """
    data = bitpacking.encode_out_of_line(block.words(), width)
    return EncodedBlock(out_of_line_encoding(block.bits_per_value, width), data, block.num_values)


def out_of_line_encoding(bits_per_word: int, width: int) -> CompressiveEncoding:
    """Return how words are described that are packed out of line."""
    packed = CompressiveEncoding(flat=Flat(bits_per_value=width))
    return CompressiveEncoding(
        out_of_line_bitpacking=OutOfLineBitpacking(
            uncompressed_bits_per_value=bits_per_word, values=packed
        )
    )


def rle_encoding(bits_per_value: int) -> CompressiveEncoding:
    """Return how runs of words are described."""
    return CompressiveEncoding(
        rle=Rle(
            values=CompressiveEncoding(flat=Flat(bits_per_value=bits_per_value)),
            run_lengths=CompressiveEncoding(flat=Flat(bits_per_value=8)),
        )
    )


def encode_fsst(block: VariableWidthBlock) -> EncodedValues:
    """Encode each byte string by itself, with one symbol table for all."""
    values, table = fsst.encode(block)
    inner = Fsst(symbol_table=encode_symbol_table(table), values=_encoding_of(values))
    return EncodedValues(CompressiveEncoding(fsst=inner), values)


def encode_block(block: DataBlock) -> EncodedBlock:
    """Encode values into one buffer that is always read whole.

    Args:
        block: Fixed width, variable width or fixed-size list.
    """
    if isinstance(block, FixedWidthBlock):
        data = block.data
    elif isinstance(block, VariableWidthBlock):
        data = variable.encode(block)
    elif isinstance(block, FixedSizeListBlock):
        data = fixed_size_list.encode(block).data
    else:
        raise InvalidInputError(f"a {type(block).__name__} cannot be encoded as a block")
    return EncodedBlock(_encoding_of(block), data, block.num_values)


def encode_per_value(block: DataBlock) -> EncodedValues:
    """Encode each value by itself, for a full-zip page.

    Args:
        block: Fixed width, variable width or fixed-size list.
    """
    if isinstance(block, FixedSizeListBlock):
        return EncodedValues(_encoding_of(block), fixed_size_list.encode(block))
    if isinstance(block, StructBlock):
        return _encode_packed(block)
    if isinstance(block, FixedWidthBlock | VariableWidthBlock):
        return EncodedValues(_encoding_of(block), block)
    raise InvalidInputError(f"a {type(block).__name__} cannot be encoded value by value")


def _codec_of(encoding: CompressiveEncoding) -> tuple[Codec, Any]:
    """Return the codec at the root of an encoding, and its message."""
    name = _name_of(encoding)
    if name in REFUSED:
        raise UnsupportedFeatureError(f"the encoding {name!r} is not supported: {REFUSED[name]}")
    return CODECS[name], getattr(encoding, name)


def _name_of(encoding: CompressiveEncoding) -> str:
    name: str | None = encoding.WhichOneof("compression")
    if name is None:
        raise UnsupportedFeatureError(
            "an encoding is missing, or is of a kind that was added after this version"
        )
    return name


def _at_position(
    decode: Callable[..., B] | None, encoding: CompressiveEncoding, position: str
) -> Callable[..., B]:
    if decode is None:
        raise UnsupportedFeatureError(
            f"the encoding {_name_of(encoding)!r} is not supported in {position}"
        )
    return decode


def _inner(encoding: CompressiveEncoding, name: str, outer: str) -> Any:
    """Return the message of the one codec that can stand inside another.

    Raises:
        UnsupportedFeatureError: Another one stands there.
    """
    found = _name_of(encoding)
    if found != name:
        raise UnsupportedFeatureError(f"{found} inside of {outer} is not supported, only {name}")
    return getattr(encoding, name)


def _plain_bits(message: Flat | InlineBitpacking) -> int:
    """Return the width of values that are not compressed once more."""
    field = "data" if isinstance(message, Flat) else "values"
    if message.HasField(field):
        raise UnsupportedFeatureError("flat or bit-packed values that are compressed once more")
    if isinstance(message, Flat):
        return message.bits_per_value
    return message.uncompressed_bits_per_value


def _flat_mini_block(
    message: Flat, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    return flat.decode_chunks(buffers[0], num_values, _plain_bits(message))


def _flat_pick(
    message: Flat, buffers: Sequence[ChunkedBuffer], num_values: Counts, places: Counts
) -> DataBlock | None:
    return flat.pick_chunks(buffers[0], num_values, _plain_bits(message), places)


def _flat_block(message: Flat, buffer: Bytes, num_values: int) -> DataBlock:
    return flat.decode(buffer, num_values, _plain_bits(message))


def _flat_per_value(message: Flat, block: ValueBlock) -> DataBlock:
    rows = _fixed(block, "flat")
    if rows.bits_per_value != _plain_bits(message):
        raise CorruptDataError(
            f"values of {_plain_bits(message)} bits in a page of {rows.bits_per_value}-bit ones"
        )
    return flat.decode(rows.data, rows.num_values, rows.bits_per_value)


def _offset_bits(message: Variable) -> int:
    if message.HasField("values"):
        raise UnsupportedFeatureError("byte strings that are compressed as a whole")
    return _plain_bits(_inner(message.offsets, "flat", "offsets"))


def _variable_mini_block(
    message: Variable, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> VariableWidthBlock:
    return variable.decode_chunks(buffers[0], num_values, _offset_bits(message))


def _variable_pick(
    message: Variable, buffers: Sequence[ChunkedBuffer], num_values: Counts, places: Counts
) -> VariableWidthBlock:
    return variable.pick_chunks(buffers[0], num_values, _offset_bits(message), places)


def _variable_block(message: Variable, buffer: Bytes, num_values: int) -> DataBlock:
    variable.check_bits_per_offset(_offset_bits(message))
    return variable.decode(buffer, num_values)


def _variable_per_value(message: Variable, block: ValueBlock) -> VariableWidthBlock:
    variable.check_bits_per_offset(_offset_bits(message))
    return _variable(block, "variable")


def _constant_block(message: Constant, buffer: Bytes, num_values: int) -> DataBlock:
    value = message.value if message.HasField("value") else None
    return constant.decode(buffer, num_values, value)


def _out_of_line_block(message: OutOfLineBitpacking, buffer: Bytes, num_values: int) -> DataBlock:
    return bitpacking.decode_out_of_line(
        buffer,
        num_values,
        bits_per_word=message.uncompressed_bits_per_value,
        bits_per_packed=_plain_bits(_inner(message.values, "flat", "out_of_line_bitpacking")),
    )


def _inline_mini_block(
    message: InlineBitpacking, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    return bitpacking.decode_inline_chunks(buffers[0], num_values, _plain_bits(message))


def _inline_pick(
    message: InlineBitpacking, buffers: Sequence[ChunkedBuffer], num_values: Counts, places: Counts
) -> DataBlock | None:
    return bitpacking.pick_inline_chunks(buffers[0], num_values, _plain_bits(message), places)


def _inline_block(message: InlineBitpacking, buffer: Bytes, num_values: int) -> DataBlock:
    return bitpacking.decode_inline(buffer, num_values, _plain_bits(message))


def _fsst_mini_block(
    message: Fsst, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    encoded = _variable_mini_block(_inner(message.values, "variable", "fsst"), buffers, num_values)
    return fsst.decode(encoded, decode_symbol_table(message.symbol_table))


def _fsst_pick(
    message: Fsst, buffers: Sequence[ChunkedBuffer], num_values: Counts, places: Counts
) -> DataBlock:
    inner = _inner(message.values, "variable", "fsst")
    encoded = _variable_pick(inner, buffers, num_values, places)
    return fsst.decode(encoded, decode_symbol_table(message.symbol_table))


def _fsst_per_value(message: Fsst, block: ValueBlock) -> DataBlock:
    encoded = _variable_per_value(_inner(message.values, "variable", "fsst"), block)
    return fsst.decode(encoded, decode_symbol_table(message.symbol_table))


def _rle_mini_block(
    message: Rle, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    values, lengths = message.values, message.run_lengths
    if _is_flat(values) and _is_flat(lengths):
        return rle.decode_chunks(*_flat_runs(message, buffers), num_values)
    runs = [
        _runs(message, joined(one_value), joined(one_length))
        for one_value, one_length in zip(_each(buffers[0]), _each(buffers[1]), strict=True)
    ]
    return rle.decode_chunks(
        _concatenated([each[0] for each in runs], _block_bits(values)),
        _concatenated([each[1] for each in runs], _block_bits(lengths)),
        np.array([each[1].num_values for each in runs], dtype=np.int64),
        num_values,
    )


def _rle_pick(
    message: Rle, buffers: Sequence[ChunkedBuffer], num_values: Counts, places: Counts
) -> DataBlock | None:
    if _is_flat(message.values) and _is_flat(message.run_lengths):
        return rle.pick_chunks(*_flat_runs(message, buffers), num_values, places)
    return None


def _flat_runs(
    message: Rle, buffers: Sequence[ChunkedBuffer]
) -> tuple[FixedWidthBlock, FixedWidthBlock, Counts]:
    """Return values and lengths of the runs of chunks, and how many each has."""
    value_bits, length_bits = _flat_bits(message.values), _flat_bits(message.run_lengths)
    num_runs = buffers[1].sizes * 8 // length_bits
    if (num_runs * value_bits != buffers[0].sizes * 8).any():
        raise CorruptDataError("a run-length chunk has not as many values as lengths")
    return (
        flat.decode_chunks(buffers[0], num_runs, value_bits),
        flat.decode_chunks(buffers[1], num_runs, length_bits),
        num_runs,
    )


def _rle_block(message: Rle, buffer: Bytes, num_values: int) -> DataBlock:
    return rle.decode(*_runs(message, *rle.parted(buffer)), num_values)


def _runs(message: Rle, values: Bytes, lengths: Bytes) -> tuple[FixedWidthBlock, FixedWidthBlock]:
    """Decode values and lengths of runs; the one whose bytes tell it says how many there are."""
    if _tells_count(message.run_lengths):
        lengths_block = _block_that_tells(message.run_lengths, lengths)
        num_runs = lengths_block.num_values
        return _fixed(decode_block(message.values, values, num_runs), "rle"), lengths_block
    values_block = _block_that_tells(message.values, values)
    num_runs = values_block.num_values
    return values_block, _fixed(decode_block(message.run_lengths, lengths, num_runs), "rle")


def _tells_count(encoding: CompressiveEncoding) -> bool:
    return _is_flat(encoding) or (
        _name_of(encoding) == "general" and _is_flat(encoding.general.values)
    )


def _block_that_tells(encoding: CompressiveEncoding, buffer: Bytes) -> FixedWidthBlock:
    """Decode flat values, perhaps compressed, as many as the bytes hold."""
    if _name_of(encoding) == "general":
        message = encoding.general
        return _block_that_tells(
            message.values, zstd_lz4.decode(buffer, _scheme_of(message), zstd_lz4.MAX_RAW_BYTES)
        )
    bits = _plain_bits(_inner(encoding, "flat", "rle"))
    flat.check_bits_per_value(bits)
    return flat.decode(buffer, len(buffer) * 8 // bits, bits)


def _block_bits(encoding: CompressiveEncoding) -> int:
    """Return the width of the words that a child of run-length encoding decodes to."""
    name = _name_of(encoding)
    if name == "general":
        return _block_bits(encoding.general.values)
    if name == "out_of_line_bitpacking":
        return encoding.out_of_line_bitpacking.uncompressed_bits_per_value
    return _flat_bits(encoding)


def _is_flat(encoding: CompressiveEncoding) -> bool:
    return _name_of(encoding) == "flat"


def _flat_bits(encoding: CompressiveEncoding) -> int:
    bits = _plain_bits(_inner(encoding, "flat", "rle"))
    flat.check_bits_per_value(bits)
    return bits


def _each(buffer: ChunkedBuffer) -> list[ChunkedBuffer]:
    """Return the chunks one by one."""
    return [
        ChunkedBuffer(
            buffer.data, buffer.starts[place : place + 1], buffer.sizes[place : place + 1]
        )
        for place in range(len(buffer.sizes))
    ]


def _concatenated(blocks: Sequence[FixedWidthBlock], bits_per_value: int) -> FixedWidthBlock:
    """Join blocks of whole bytes."""
    if any(block.bits_per_value != bits_per_value for block in blocks) or bits_per_value % 8:
        raise CorruptDataError(f"runs of other than {bits_per_value}-bit values")
    data = np.concatenate([np.empty(0, dtype=np.uint8), *(block.data for block in blocks)])
    return FixedWidthBlock(bits_per_value, sum(block.num_values for block in blocks), data)


def _split_mini_block(
    message: ByteStreamSplit, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    bits = _plain_bits(_inner(message.values, "flat", "byte_stream_split"))
    return byte_stream_split.decode_chunks(buffers[0], num_values, bits)


def _general_mini_block(
    message: General, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    raw = zstd_lz4.decode_chunks(buffers[0], _scheme_of(message), MAX_RAW_CHUNK_BYTES)
    return decode_mini_block(message.values, [raw, *buffers[1:]], num_values)


def _general_pick(
    message: General, buffers: Sequence[ChunkedBuffer], num_values: Counts, places: Counts
) -> DataBlock | None:
    if not _can_pick(message.values):
        return None
    raw = zstd_lz4.decode_chunks(buffers[0], _scheme_of(message), MAX_RAW_CHUNK_BYTES)
    return pick_mini_block(message.values, [raw, *buffers[1:]], num_values, places)


def _can_pick(encoding: CompressiveEncoding) -> bool:
    """Return whether single values are always to be had, so that nothing is decompressed twice."""
    codec, message = _codec_of(encoding)
    if isinstance(message, Flat):
        return message.bits_per_value in WORDS
    return codec.pick in (_variable_pick, _fsst_pick)


def _general_block(message: General, buffer: Bytes, num_values: int) -> DataBlock:
    raw = zstd_lz4.decode(buffer, _scheme_of(message), zstd_lz4.MAX_RAW_BYTES)
    return decode_block(message.values, raw, num_values)


def _general_per_value(message: General, block: ValueBlock) -> DataBlock:
    _offset_bits(_inner(message.values, "variable", "general"))
    return zstd_lz4.decode_per_value(_variable(block, "general"), _scheme_of(message))


def _num_general_buffers(message: General) -> int:
    if _name_of(message.values) == "general":
        raise UnsupportedFeatureError("general compression inside of general compression")
    return num_mini_block_buffers(message.values)


def _scheme_of(message: General) -> str:
    scheme = message.compression.scheme
    if scheme not in SCHEMES:
        raise UnsupportedFeatureError(
            f"compression scheme {scheme} is not known, only {', '.join(SCHEMES.values())}"
        )
    if _name_of(message.values) == "general":
        raise UnsupportedFeatureError("general compression inside of general compression")
    return SCHEMES[scheme]


def _list_layout(message: FixedSizeList) -> ListLayout:
    layers = []
    inner = CompressiveEncoding(fixed_size_list=message)
    while _name_of(inner) == "fixed_size_list":
        lists = inner.fixed_size_list
        layers.append(ListLayer(lists.items_per_value, lists.has_validity))
        inner = lists.values
    if _name_of(inner) == "constant" and not inner.constant.HasField("value"):
        return ListLayout(tuple(layers), bits_per_item=0)
    bits = _plain_bits(_inner(inner, "flat", "fixed_size_list"))
    flat.check_bits_per_value(bits)
    return ListLayout(tuple(layers), bits)


def _list_mini_block(
    message: FixedSizeList, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    return fixed_size_list.decode_chunks(buffers, num_values, _list_layout(message))


def _list_block(message: FixedSizeList, buffer: Bytes, num_values: int) -> DataBlock:
    return fixed_size_list.decode(buffer, num_values, _list_layout(message))


def _list_per_value(message: FixedSizeList, block: ValueBlock) -> DataBlock:
    layout = _list_layout(message)
    rows = _fixed(block, "fixed_size_list")
    if rows.bits_per_value != layout.bits_per_row:
        raise CorruptDataError(
            f"lists of {layout.bits_per_row} bits in a page of {rows.bits_per_value}-bit values"
        )
    return fixed_size_list.decode(rows.data, rows.num_values, layout)


def _num_list_buffers(message: FixedSizeList) -> int:
    return 1 + sum(layer.has_validity for layer in _list_layout(message).layers)


def _packed_bits(message: PackedStruct) -> int:
    """Return the width of a packed struct, once its parts' widths add up to it."""
    bits = _plain_bits(_inner(message.values, "flat", "packed_struct"))
    flat.check_bits_per_value(bits)
    packed_struct.check_widths(message.bits_per_value, bits)
    return bits


def _packed_mini_block(
    message: PackedStruct, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> StructBlock:
    rows = flat.decode_chunks(buffers[0], num_values, _packed_bits(message))
    return packed_struct.split(rows, message.bits_per_value)


def _packed_per_value(message: PackedStruct, block: ValueBlock) -> StructBlock:
    rows = _fixed(block, "packed_struct")
    if rows.bits_per_value != _packed_bits(message):
        raise CorruptDataError(
            f"structs of {_packed_bits(message)} bits in a page of {rows.bits_per_value}-bit values"
        )
    return packed_struct.split(rows, message.bits_per_value)


def _variable_packed_per_value(message: VariablePackedStruct, block: ValueBlock) -> StructBlock:
    layouts = [each.WhichOneof("layout") for each in message.fields]
    if None in layouts:
        raise CorruptDataError("a part of a packed struct has no width")
    parts = packed_struct.split_variable(
        _variable(block, "variable_packed_struct"),
        [getattr(each, str(name)) for each, name in zip(message.fields, layouts, strict=True)],
        [name == "bits_per_length" for name in layouts],
    )
    return StructBlock(
        tuple(
            decode_per_value(each.value, part)
            for each, part in zip(message.fields, parts, strict=True)
        ),
        block.num_values,
    )


def _encode_packed(block: StructBlock) -> EncodedValues:
    """Encode structs value by value; those without a part of variable width have a width."""
    for each in block.parts:
        packed_struct.check_whole_bytes(each)
    fixed = [each for each in block.parts if isinstance(each, FixedWidthBlock)]
    if len(fixed) == len(block.parts):
        rows = packed_struct.zipped(fixed)
        return EncodedValues(_packed_encoding(block, rows.bits_per_value), rows)
    fields, encoded = [], []
    for each in block.parts:
        encoding, part = encode_per_value(each)
        field = VariablePackedStruct.FieldEncoding(value=encoding)
        if isinstance(part, FixedWidthBlock):
            field.bits_per_value = part.bits_per_value
        else:
            field.bits_per_length = part.offsets.itemsize * 8
        fields.append(field)
        encoded.append(part)
    message = VariablePackedStruct(fields=fields)
    return EncodedValues(
        CompressiveEncoding(variable_packed_struct=message), packed_struct.zip_variable(encoded)
    )


def _packed_encoding(block: StructBlock, bits_per_value: int) -> CompressiveEncoding:
    return CompressiveEncoding(
        packed_struct=PackedStruct(
            bits_per_value=[_fixed(each, "packed_struct").bits_per_value for each in block.parts],
            values=CompressiveEncoding(flat=Flat(bits_per_value=bits_per_value)),
        )
    )


def _fixed(block: DataBlock, codec: str) -> FixedWidthBlock:
    if not isinstance(block, FixedWidthBlock):
        raise CorruptDataError(f"{codec} needs values of fixed width, not {type(block).__name__}")
    return block


def _variable(block: DataBlock, codec: str) -> VariableWidthBlock:
    if not isinstance(block, VariableWidthBlock):
        raise CorruptDataError(f"{codec} needs byte strings, not {type(block).__name__}")
    return block


def _encoding_of(block: DataBlock) -> CompressiveEncoding:
    """Return how values are described that are stored as they are."""
    if isinstance(block, FixedSizeListBlock):
        lists = FixedSizeList(
            items_per_value=block.items_per_value,
            values=_encoding_of(block.items),
            has_validity=block.validity is not None,
        )
        return CompressiveEncoding(fixed_size_list=lists)
    if isinstance(block, VariableWidthBlock):
        offsets = CompressiveEncoding(flat=Flat(bits_per_value=block.offsets.itemsize * 8))
        return CompressiveEncoding(variable=Variable(offsets=offsets))
    if isinstance(block, FixedWidthBlock):
        return CompressiveEncoding(flat=Flat(bits_per_value=block.bits_per_value))
    raise InvalidInputError(f"a {type(block).__name__} cannot be stored as it is")


def _general(inner: CompressiveEncoding, scheme: str, level: int | None) -> CompressiveEncoding:
    compression = BufferCompression(
        scheme=_SCHEME_NUMBERS[scheme]  # type: ignore[arg-type]  # an int is one
    )
    if level is not None and scheme == zstd_lz4.ZSTD:
        compression.level = level
    return CompressiveEncoding(general=General(compression=compression, values=inner))


MAX_RAW_CHUNK_BYTES = 1 << 28
"""More than a mini-block chunk can need: its size is counted in 28 bits."""

SCHEMES: dict[int, str] = {
    COMPRESSION_ALGORITHM_LZ4: zstd_lz4.LZ4,
    COMPRESSION_ALGORITHM_ZSTD: zstd_lz4.ZSTD,
}

_SCHEME_NUMBERS = {name: number for number, name in SCHEMES.items()}

CODECS: dict[str, Codec] = {
    "flat": Codec(_flat_mini_block, _flat_block, _flat_per_value, pick=_flat_pick),
    "variable": Codec(
        _variable_mini_block, _variable_block, _variable_per_value, pick=_variable_pick
    ),
    "constant": Codec(block=_constant_block),
    "out_of_line_bitpacking": Codec(block=_out_of_line_block),
    "inline_bitpacking": Codec(_inline_mini_block, _inline_block, pick=_inline_pick),
    "fsst": Codec(_fsst_mini_block, per_value=_fsst_per_value, pick=_fsst_pick),
    "rle": Codec(_rle_mini_block, _rle_block, num_mini_block_buffers=lambda _: 2, pick=_rle_pick),
    "byte_stream_split": Codec(_split_mini_block),
    "general": Codec(
        _general_mini_block,
        _general_block,
        _general_per_value,
        _num_general_buffers,
        _general_pick,
    ),
    "fixed_size_list": Codec(_list_mini_block, _list_block, _list_per_value, _num_list_buffers),
    "packed_struct": Codec(_packed_mini_block, per_value=_packed_per_value),
    "variable_packed_struct": Codec(per_value=_variable_packed_per_value),
}
"""The codecs that we decode, by the name of their field in CompressiveEncoding."""

REFUSED: dict[str, str] = {
    "dictionary": "2.1 and 2.2 keep a dictionary in the layout; as a codec, 2.3 tries it out",
    "range": "an experiment of file version 2.3, which is not stable yet",
    "delta": "an experiment of file version 2.3, which is not stable yet",
}
"""The codecs that we do not decode, and why."""
