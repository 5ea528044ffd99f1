"""What a codec is: one encoding of the proto as a value, and the positions that it can stand in.

    MiniBlockCodec   all chosen chunks of a page at once, each with one to three value buffers
    BlockCodec       one buffer that is always read whole: dictionaries, levels, constants
    PerValueCodec    the values of a full-zip page, after they were parted from their levels

A codec has those of the three as bases that it can stand in. What its message says are its fields:
`from_proto` and `to_proto` are each other's inverse. Its module also has the functions that encode;
they give the codec that decodes again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.chunked_buffers import ChunkedBuffer, Counts
from lance_stream.file.data_blocks import Bytes, DataBlock, FixedWidthBlock, VariableWidthBlock

ValueBlock: TypeAlias = FixedWidthBlock | VariableWidthBlock


class Codec(ABC):
    """An encoding of values, with all that its message says of it.

    Attributes:
        name: Of its field in CompressiveEncoding.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_proto(cls, message: Any, parse: "Parse") -> Self:
        """Return the codec that a message describes.

        Args:
            message: Of the field `name`.
            parse: What gives the codecs inside of it.

        Raises:
            BadDataError: No such codec can be, or it is none that we know.
        """

    @abstractmethod
    def to_proto(self) -> pb.CompressiveEncoding:
        """Return the encoding that describes the codec."""


Parse: TypeAlias = Callable[[pb.CompressiveEncoding], Codec]
"""What gives the codec of an encoding: `registry.parse`, handed in, as it knows all codecs."""


class MiniBlockCodec(Codec):
    """A codec that can stand in a mini-block page."""

    @property
    def num_buffers(self) -> int:
        """How many value buffers each chunk has."""
        return 1

    @property
    def always_picks(self) -> bool:
        """Whether `pick` gives single values of any chunks."""
        return False

    @abstractmethod
    def decode_mini_block(self, buffers: Sequence[ChunkedBuffer], num_values: Counts) -> DataBlock:
        """Decode the chosen chunks of a page.

        Args:
            buffers: The value buffers, `num_buffers` of them; they lie inside their bytes.
            num_values: (num_chunks,) how many values each chunk holds.

        Raises:
            CorruptDataError: The bytes do not hold so many values, or are damaged.
        """

    def pick(
        self,
        buffers: Sequence[ChunkedBuffer],  # noqa: ARG002  # for codecs that can
        num_values: Counts,  # noqa: ARG002  # for codecs that can
        places: Counts,  # noqa: ARG002  # for codecs that can
    ) -> DataBlock | None:
        """Decode single values of the chosen chunks of a page.

        Args:
            buffers: As in `decode_mini_block`.
            num_values: As in `decode_mini_block`.
            places: Which values, counted over all chunks; ascending.

        Returns:
            None if there is no way that is shorter than to decode whole chunks.

        Raises:
            CorruptDataError: The bytes do not hold so many values, or are damaged.
        """
        return None


class BlockCodec(Codec):
    """A codec that can stand around a buffer that is always read whole."""

    @abstractmethod
    def decode_block(self, buffer: Bytes, num_values: int) -> DataBlock:
        """Decode a buffer.

        Args:
            buffer: All its bytes and no others.
            num_values: How many values it holds, from 0 on.

        Raises:
            CorruptDataError: The bytes do not hold so many values, or are damaged.
        """


class PerValueCodec(Codec):
    """A codec that can stand in a full-zip page."""

    @abstractmethod
    def decode_per_value(self, block: ValueBlock) -> DataBlock:
        """Decode values, each of which was encoded separately.

        Args:
            block: The encoded values; its offsets have been checked.

        Raises:
            CorruptDataError: The bytes do not hold so many values, or are damaged.
        """


class EncodedMiniBlock(NamedTuple):
    """A page's values, cut into mini-block chunks.

    Args:
        codec: What decodes them.
        buffers: The value buffers, one or more, each with its place in every chunk; sizes are
            not padded to 8.
        num_values: (num_chunks,) values of each chunk: powers of two from 2 on, but for the last.
    """

    codec: MiniBlockCodec
    buffers: tuple[ChunkedBuffer, ...]
    num_values: Counts

    @property
    def encoding(self) -> pb.CompressiveEncoding:
        """How, for the page's layout message."""
        return self.codec.to_proto()


class EncodedBlock(NamedTuple):
    """Values in one buffer that is always read whole.

    Args:
        codec: What decodes them.
        data: The buffer.
        num_values: How many values it holds.
    """

    codec: BlockCodec
    data: Bytes
    num_values: int

    @property
    def encoding(self) -> pb.CompressiveEncoding:
        """How, for the page's layout message."""
        return self.codec.to_proto()


class EncodedValues(NamedTuple):
    """Values that were encoded one by one, for a full-zip page.

    Args:
        codec: What decodes them.
        values: What each has become: of one width, or byte strings.
    """

    codec: PerValueCodec
    values: ValueBlock

    @property
    def encoding(self) -> pb.CompressiveEncoding:
        """How, for the page's layout message."""
        return self.codec.to_proto()


C = TypeVar("C", bound=Codec)


def only(inner: Codec, kind: type[C], outer: str) -> C:
    """Return the one codec that can stand inside another.

    Raises:
        UnsupportedFeatureError: Another one stands there.
    """
    if not isinstance(inner, kind):
        raise UnsupportedFeatureError(
            f"{inner.name} inside of {outer} is not supported, only {kind.name}"
        )
    return inner


def in_mini_block(codec: Codec) -> MiniBlockCodec:
    """Return a codec that stands in a mini-block page.

    Raises:
        UnsupportedFeatureError: It cannot.
    """
    if not isinstance(codec, MiniBlockCodec):
        raise _misplaced(codec, "a mini-block page")
    return codec


def in_block(codec: Codec) -> BlockCodec:
    """Return a codec that stands around a block.

    Raises:
        UnsupportedFeatureError: It cannot.
    """
    if not isinstance(codec, BlockCodec):
        raise _misplaced(codec, "a block")
    return codec


def in_full_zip(codec: Codec) -> PerValueCodec:
    """Return a codec that stands in a full-zip page.

    Raises:
        UnsupportedFeatureError: It cannot.
    """
    if not isinstance(codec, PerValueCodec):
        raise _misplaced(codec, "a full-zip page")
    return codec


def fixed_width(block: DataBlock, codec: str) -> FixedWidthBlock:
    """Return values that a codec needs to be of one width.

    Raises:
        CorruptDataError: They are not.
    """
    if not isinstance(block, FixedWidthBlock):
        raise CorruptDataError(f"{codec} needs values of fixed width, not {type(block).__name__}")
    return block


def byte_strings(block: DataBlock, codec: str) -> VariableWidthBlock:
    """Return values that a codec needs to be byte strings.

    Raises:
        CorruptDataError: They are not.
    """
    if not isinstance(block, VariableWidthBlock):
        raise CorruptDataError(f"{codec} needs byte strings, not {type(block).__name__}")
    return block


def _misplaced(codec: Codec, position: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"the encoding {codec.name!r} is not supported in {position}")
