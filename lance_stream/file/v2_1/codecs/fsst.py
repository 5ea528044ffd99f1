"""FSST codec: byte strings in which frequent pieces are replaced by 1-byte codes.

The variable codec stores the coded values; the encoding contains the meaning of the codes:

    symbol_table   2,312 bytes, one table per page

Values stay separate, so the codec suits mini-block and full-zip pages.

Source:  encodings21.Fsst in the proto; `compression.fsst`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Counts
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import VariableWidthBlock
from lance_stream.file.compression import fsst
from lance_stream.file.compression.fsst_symbols import (
    SymbolTable,
    decode_symbol_table,
    encode_symbol_table,
)
from lance_stream.file.v2_1.codecs.codec import (
    MiniBlockCodec,
    Parse,
    PerValueCodec,
    ValueBlock,
    only,
)
from lance_stream.file.v2_1.codecs.variable import Variable


@dataclass(frozen=True, slots=True)
class Fsst(MiniBlockCodec, PerValueCodec):
    """Byte strings as codes.

    Args:
        table: The meaning of the codes.
        values: The codec of the codes.
    """

    name = "fsst"

    table: SymbolTable
    values: Variable

    @classmethod
    def from_proto(cls, message: pb.Fsst, parse: Parse) -> Self:
        values = only(parse(message.values), Variable, cls.name)
        return cls(decode_symbol_table(message.symbol_table), values)

    def to_proto(self) -> pb.CompressiveEncoding:
        table = encode_symbol_table(self.table)
        inner = pb.Fsst(symbol_table=table, values=self.values.to_proto())
        return pb.CompressiveEncoding(fsst=inner)

    @property
    def always_picks(self) -> bool:
        return True

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> VariableWidthBlock:
        return fsst.decode(self.values.decode_mini_block(buffers, num_values), self.table)

    def pick(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts, positions: Counts
    ) -> VariableWidthBlock:
        return fsst.decode(self.values.pick(buffers, num_values, positions), self.table)

    def decode_per_value(self, block: ValueBlock) -> VariableWidthBlock:
        return fsst.decode(self.values.decode_per_value(block), self.table)


def encode(
    block: VariableWidthBlock, choice: fsst.TrainedSymbols | None = None
) -> tuple[Fsst, VariableWidthBlock]:
    """Encode each byte string separately, with one symbol table for all.

    Args:
        block: The byte strings.
        choice: Their symbols, if they are known.

    Returns:
        The codec that decodes the values, and the encoded values.
    """
    values, table = fsst.encode(block, choice)
    return Fsst(table, Variable.of(values)), values
