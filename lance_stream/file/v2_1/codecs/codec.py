"""Defines codecs: one encoding of the proto as a value, and its possible positions.

    MiniBlockCodec   all chosen chunks of a page at once, each with one to three value buffers
    BlockCodec       one buffer that is always read as a whole: dictionaries, levels, constants
    PerValueCodec    the values of a full-zip page, after they were split from their levels

The bases of a codec are its possible positions. Its fields are the contents of its message:
`from_proto` and `to_proto` are inverse to each other. Its module also has the functions that
encode; they return the codec that decodes the result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import DataBlock, FixedWidthBlock, VariableWidthBlock

ValueBlock: TypeAlias = FixedWidthBlock | VariableWidthBlock


class Codec(ABC):
    """An encoding of values, with all contents of its message.

    Attributes:
        name: The name of its field in CompressiveEncoding.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_proto(cls, message: Any, parse: "Parse") -> Self:
        """Return the codec that a message describes.

        Args:
            message: The message of the field `name`.
            parse: Returns the codecs inside of it.

        Raises:
            BadDataError: The codec is impossible or unknown.
        """

    @abstractmethod
    def to_proto(self) -> pb.CompressiveEncoding:
        """Return the encoding that describes the codec."""


Parse: TypeAlias = Callable[[pb.CompressiveEncoding], Codec]
"""Returns the codec of an encoding: `registry.parse`, an argument since it knows all codecs."""


class MiniBlockCodec(Codec):
    """A codec for mini-block pages."""

    @property
    def num_buffers(self) -> int:
        """The number of value buffers of each chunk."""
        return 1

    @property
    def always_picks(self) -> bool:
        """Whether `pick` returns single values for any chunks."""
        return False

    @abstractmethod
    def decode_mini_block(self, buffers: Sequence[ChunkedBuffer], num_values: Counts) -> DataBlock:
        """Decode the chosen chunks of a page.

        Args:
            buffers: The value buffers, `num_buffers` of them; they are inside their bytes.
            num_values: (num_chunks,) the number of values of each chunk.

        Raises:
            CorruptDataError: The bytes do not match the number of values, or are damaged.
        """

    def pick(
        self,
        buffers: Sequence[ChunkedBuffer],  # noqa: ARG002  # for codecs that can
        num_values: Counts,  # noqa: ARG002  # for codecs that can
        positions: Counts,  # noqa: ARG002  # for codecs that can
    ) -> DataBlock | None:
        """Decode single values of the chosen chunks of a page.

        Args:
            buffers: As in `decode_mini_block`.
            num_values: As in `decode_mini_block`.
            positions: Which values, counted over all chunks; ascending.

        Returns:
            None if decoding whole chunks is the fastest way.

        Raises:
            CorruptDataError: The bytes do not match the number of values, or are damaged.
        """
        return None


class BlockCodec(Codec):
    """A codec for a buffer that is always read as a whole."""

    @abstractmethod
    def decode_block(self, buffer: Bytes, num_values: int) -> DataBlock:
        """Decode a buffer.

        Args:
            buffer: All its bytes and no others.
            num_values: The number of its values, from 0.

        Raises:
            CorruptDataError: The bytes do not match the number of values, or are damaged.
        """


class PerValueCodec(Codec):
    """A codec for full-zip pages."""

    @abstractmethod
    def decode_per_value(self, block: ValueBlock) -> DataBlock:
        """Decode values, each of which was encoded separately.

        Args:
            block: The encoded values; its offsets have been checked.

        Raises:
            CorruptDataError: The bytes do not match the number of values, or are damaged.
        """


class EncodedMiniBlock(NamedTuple):
    """A page's values, cut into mini-block chunks.

    Args:
        codec: The codec that decodes them.
        buffers: The value buffers, one or more, each with its part of every chunk; sizes are
            not padded to 8.
        num_values: (num_chunks,) values of each chunk: powers of two from 2 on, but for the last.
    """

    codec: MiniBlockCodec
    buffers: tuple[ChunkedBuffer, ...]
    num_values: Counts

    @property
    def encoding(self) -> pb.CompressiveEncoding:
        """The encoding, for the page's layout message."""
        return self.codec.to_proto()


class EncodedBlock(NamedTuple):
    """Values in one buffer that is always read as a whole.

    Args:
        codec: The codec that decodes them.
        data: The buffer.
        num_values: The number of its values.
    """

    codec: BlockCodec
    data: Bytes
    num_values: int

    @property
    def encoding(self) -> pb.CompressiveEncoding:
        """The encoding, for the page's layout message."""
        return self.codec.to_proto()


class EncodedValues(NamedTuple):
    """Individually encoded values, for a full-zip page.

    Args:
        codec: The codec that decodes them.
        values: The encoded values: of fixed width, or byte strings.
    """

    codec: PerValueCodec
    values: ValueBlock

    @property
    def encoding(self) -> pb.CompressiveEncoding:
        """The encoding, for the page's layout message."""
        return self.codec.to_proto()


C = TypeVar("C", bound=Codec)


def only(inner: Codec, kind: type[C], outer: str) -> C:
    """Return a nested codec of the only kind that another codec supports.

    Raises:
        UnsupportedFeatureError: It is of another kind.
    """
    if not isinstance(inner, kind):
        raise UnsupportedFeatureError(
            f"the encoding {inner.name!r} within {outer!r} is not supported, only {kind.name!r}"
        )
    return inner


def in_mini_block(codec: Codec) -> MiniBlockCodec:
    """Return a codec as one for mini-block pages.

    Raises:
        UnsupportedFeatureError: It is not supported there.
    """
    if not isinstance(codec, MiniBlockCodec):
        raise _misplaced(codec, "a mini-block page")
    return codec


def in_block(codec: Codec) -> BlockCodec:
    """Return a codec as one for blocks.

    Raises:
        UnsupportedFeatureError: It is not supported there.
    """
    if not isinstance(codec, BlockCodec):
        raise _misplaced(codec, "a block")
    return codec


def in_full_zip(codec: Codec) -> PerValueCodec:
    """Return a codec as one for full-zip pages.

    Raises:
        UnsupportedFeatureError: It is not supported there.
    """
    if not isinstance(codec, PerValueCodec):
        raise _misplaced(codec, "a full-zip page")
    return codec


def fixed_width(block: DataBlock, codec: str) -> FixedWidthBlock:
    """Return values as fixed-width ones, which a codec requires.

    Raises:
        CorruptDataError: They have no fixed width.
    """
    if not isinstance(block, FixedWidthBlock):
        raise CorruptDataError(
            f"the encoding {codec!r} requires values of fixed width, not {type(block).__name__}"
        )
    return block


def byte_strings(block: DataBlock, codec: str) -> VariableWidthBlock:
    """Return values as byte strings, which a codec requires.

    Raises:
        CorruptDataError: They are not byte strings.
    """
    if not isinstance(block, VariableWidthBlock):
        raise CorruptDataError(
            f"the encoding {codec!r} requires byte strings, not {type(block).__name__}"
        )
    return block


def _misplaced(codec: Codec, position: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"the encoding {codec.name!r} is not supported in {position}")
