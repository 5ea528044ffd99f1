"""The end of a 0.1 file: metadata and footer.

    pages               in the order they were written, without gaps or alignment
    page table          i64 position, i64 length for each field and batch (see `page_table`)
    statistics          pages of bounds, then their own page table (see `statistics`)
    dictionaries        the values of dictionary columns, plain or as byte strings
    manifest            u32 size, a Manifest message with nothing but the file's own schema
    metadata            u32 size, a Metadata message
    footer              the last 16 bytes: u64 metadata position | u16 major | u16 minor | "LANC"

Source:  file.proto, message Metadata; the document of file version 0.1.
Differs: The first writers omitted statistics and the manifest; missing parts have position 0. In
    the
         document the manifest is after the metadata; writers put it before.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_stream._proto import file_pb2, table_pb2
from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field, Schema, fields_from_proto, fields_to_proto

FOOTER_BYTES: Final = 16
MAGIC: Final = b"LANC"
MAX_ROWS: Final = 2**31 - 1
"""Batch offsets are i32."""

_FOOTER: Final = struct.Struct("<QHH4s")
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class DictionaryLocation:
    """The position of a dictionary column's values.

    Attributes:
        start: Position of the values; of the offsets, if they are byte strings.
        length: Their number.
    """

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class StatisticsLocation:
    """The position of the bounds of the pages.

    Attributes:
        fields: A struct for each field with bounds, named by the field's id.
        page_table_start: Position of their page table: one batch, with one row for each page.
    """

    fields: tuple[Field, ...]
    page_table_start: int


@dataclass(frozen=True, slots=True, eq=False)
class FileTail:
    """The contents of the end of a file.

    Attributes:
        batch_offsets: (num_batches + 1,) the first row of each batch, then the number of rows.
        page_table_start: Position of the page table.
        schema: The file's own schema; empty if the writer omitted it.
        dictionaries: The positions of the dictionaries, by field id.
        statistics: The position of the statistics; None if there are none.
        data_stop: The end of all that pages may refer to.
    """

    batch_offsets: npt.NDArray[np.int64]
    page_table_start: int
    schema: Schema = field(default_factory=Schema)
    dictionaries: dict[int, DictionaryLocation] = field(default_factory=dict)
    statistics: StatisticsLocation | None = None
    data_stop: int = 0

    @property
    def num_rows(self) -> int:
        """Rows in the file."""
        return int(self.batch_offsets[-1])

    @property
    def num_batches(self) -> int:
        """Batches in the file."""
        return len(self.batch_offsets) - 1


def read_tail(footer: bytes | memoryview, size_bytes: int) -> ByteRequests[FileTail]:
    """Return the contents of a file's end: up to four rounds, none if its last bytes are known.

    Args:
        footer: The last 16 bytes.
        size_bytes: The size of the file.

    Raises:
        CorruptDataError: A position is outside of the file, or a message is malformed.
    """
    if len(footer) < FOOTER_BYTES:
        raise CorruptDataError(f"a file of {size_bytes} bytes is too short for a footer")
    metadata_start, *_ = _FOOTER.unpack(footer[-FOOTER_BYTES:])
    data_stop = size_bytes - FOOTER_BYTES
    metadata = file_pb2.Metadata()
    _parse(metadata, (yield from _read_message(metadata_start, data_stop)), "the metadata")
    schema, dictionaries = Schema(), {}
    if metadata.manifest_position:
        manifest = table_pb2.Manifest()
        _parse(
            manifest,
            (yield from _read_message(metadata.manifest_position, data_stop)),
            "the file's own schema",
        )
        schema = Schema(fields_from_proto(manifest.fields), dict(manifest.schema_metadata))
        dictionaries = {
            schema_field.id: DictionaryLocation(
                schema_field.dictionary.offset, schema_field.dictionary.length
            )
            for schema_field in manifest.fields
            if schema_field.HasField("dictionary")
        }
    return FileTail(
        batch_offsets=_batch_offsets(metadata),
        page_table_start=metadata.page_table_position,
        schema=schema,
        dictionaries=dictionaries,
        statistics=(
            StatisticsLocation(
                fields_from_proto(metadata.statistics.schema),
                metadata.statistics.page_table_position,
            )
            if metadata.HasField("statistics")
            else None
        ),
        data_stop=data_stop,
    )


def encode_tail(tail: FileTail, start: int) -> bytes:
    """Return manifest, metadata and footer.

    Args:
        tail: Their contents.
        start: The position at which they are written.
    """
    manifest = table_pb2.Manifest(
        fields=fields_to_proto(tail.schema.fields),
        schema_metadata=dict(tail.schema.metadata),
        version=1,
        data_format=table_pb2.Manifest.DataStorageFormat(
            file_format="lance", version=FileVersion.V0_1.manifest_name
        ),
    )
    for schema_field in manifest.fields:
        location = tail.dictionaries.get(schema_field.id)
        if location is not None:
            schema_field.dictionary.offset, schema_field.dictionary.length = (
                location.start,
                location.length,
            )
    metadata = file_pb2.Metadata(
        manifest_position=start,
        batch_offsets=tail.batch_offsets.tolist(),
        page_table_position=tail.page_table_start,
    )
    if tail.statistics is not None:
        messages = fields_to_proto(tail.statistics.fields)
        metadata.statistics.schema.extend(messages)
        metadata.statistics.fields.extend(message.id for message in messages)
        metadata.statistics.page_table_position = tail.statistics.page_table_start
    schema_bytes = _framed(manifest.SerializeToString())
    footer = _FOOTER.pack(start + len(schema_bytes), *FileVersion.V0_1.footer_numbers, MAGIC)
    return schema_bytes + _framed(metadata.SerializeToString()) + footer


def _read_message(start: int, limit: int) -> ByteRequests[bytes]:
    body = start + _LENGTH.size
    if body > limit:
        raise CorruptDataError(f"a message starts at byte {start}, after the end at {limit}")
    (length,) = yield [ByteRange(start, body)]
    (size,) = _LENGTH.unpack(length)
    if body + size > limit:
        raise CorruptDataError(f"a message has {size} bytes, but only {limit - body} remain")
    (data,) = yield [ByteRange(body, body + size)]
    return bytes(data)


def _parse(message: file_pb2.Metadata | table_pb2.Manifest, data: bytes, what: str) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptDataError(f"{what} is malformed: {error}") from None


def _batch_offsets(metadata: file_pb2.Metadata) -> npt.NDArray[np.int64]:
    offsets = np.array(metadata.batch_offsets or [0], np.int64)
    if offsets[0] != 0 or bool((offsets[1:] < offsets[:-1]).any()):
        raise CorruptDataError("the batches of the file do not follow one another from row 0 on")
    return offsets


def _framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message
