"""The format of a run of the key index: the keys of some data files, sorted, with their rows.

    _lance_stream/key_index/{id of the first key field}-{32 hex digits}.keys

    chunk, chunk, ...     65,536 keys each; the last chunk has the rest
    footer                the files that the run covers, and the first word of each chunk
    trailer               48 bytes: u64 bytes of the footer · BLAKE2b-256 of the footer · magic

    chunk                 words   u64 each, ascending over the whole run; equal for equal keys
                          others  u32 each: further bits of the same keys; none if words are exact
                          rows    u32 each: the row's number among all rows of the run's files
    footer                u32 bytes of the header · header, JSON · firsts, u64: the first word of
                          each chunk · checks, u32: its CRC-32 · of each file: rows, u32; and for
                          each key column 16 random bytes of the file's name and its column, i32

All numbers are little-endian. Files and rows are numbered in the order of the footer: row 7 of the
second file has the number 7 + rows of the first file. A row whose key is null is in no chunk.

A word is the key itself if it is a number of up to 8 bytes. Other keys are identified by 96 bits of
two hashes (`keys.key_words.hash_keys`) with random seeds, which the header states: someone who
chooses keys but cannot read the table cannot construct collisions.

A run is a cache. It contains no paths, and all numbers are checked before they are used.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import U64s
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError
from lance_stream.keys.file_columns import FileColumn

FileKey: TypeAlias = tuple[FileColumn, ...]
"""The columns of data files that store the key columns of a fragment."""

U32s: TypeAlias = npt.NDArray[np.uint32]

CHUNK_ROWS: Final = 1 << 16
TRAILER_BYTES: Final = 48
MAX_FOOTER_BYTES: Final = 64 << 20
MAX_ROWS: Final = 1 << 28
"""The maximum number of rows of a run; a row's number fits into 32 bits."""

_MAGIC: Final = b"LSKEYS02"  # 01 had hashes that some keys share
_DIGEST_BYTES: Final = 32
_FILE_BYTES: Final = 16


class CoveredFile(NamedTuple):
    """A file whose keys are all in a run.

    Attributes:
        file: The columns that store the keys.
        num_rows: The number of rows that its fragment states, including deleted ones.
    """

    file: FileKey
    num_rows: int


class KeyColumns(NamedTuple):
    """The description of the keys of a run.

    Attributes:
        field_ids: The table's key columns, in order.
        types: Their types.
        is_exact: Whether equal words mean equal keys.
        seeds: The seeds of both hashes; unused if words are exact.
    """

    field_ids: tuple[int, ...]
    types: tuple[str, ...]
    is_exact: bool
    seeds: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """The size of a key in a chunk, in bytes."""
        return 12 if self.is_exact else 16


class Keys(NamedTuple):
    """Keys, ascending by their words.

    Attributes:
        words: (n,) u64.
        others: (n,) u32; None if words are exact.
        rows: (n,) u32 numbers of rows.
    """

    words: U64s
    others: U32s | None
    rows: U32s


class RunFooter(NamedTuple):
    """The footer of a run.

    Attributes:
        columns: The description of the keys.
        num_keys: The number of keys.
        files: The files that the run covers.
        firsts: (num_chunks,) u64, the first word of each chunk.
        checks: (num_chunks,) u32, the CRC-32 of each chunk.
    """

    columns: KeyColumns
    num_keys: int
    files: tuple[CoveredFile, ...]
    firsts: U64s
    checks: U32s

    @property
    def num_rows(self) -> int:
        """The number of rows of all files, including rows without a key."""
        return sum(file.num_rows for file in self.files)

    def chunk_range(self, chunk: int) -> ByteRange:
        """Return the byte range of a chunk in the file."""
        start = chunk * CHUNK_ROWS
        stop = min(start + CHUNK_ROWS, self.num_keys)
        return ByteRange(start * self.columns.row_bytes, stop * self.columns.row_bytes)


def encode_chunk(keys: Keys) -> bytes:
    """Return the bytes of a chunk."""
    parts = [keys.words.astype("<u8", copy=False).tobytes()]
    if keys.others is not None:
        parts.append(keys.others.astype("<u4", copy=False).tobytes())
    parts.append(keys.rows.astype("<u4", copy=False).tobytes())
    return b"".join(parts)


def decode_chunk(data: Any, footer: RunFooter, chunk: int) -> Keys:
    """Return the keys of a chunk.

    Args:
        data: The bytes of the chunk.
        footer: The footer of the run.
        chunk: The number of the chunk.

    Raises:
        CorruptDataError: The chunk is damaged.
    """
    view = memoryview(data)
    width = footer.columns.row_bytes
    count = len(view) // width
    if len(view) != footer.chunk_range(chunk).size_bytes:
        raise CorruptDataError(
            f"a chunk of a key index run has {len(view):,} bytes, but its footer states "
            f"{footer.chunk_range(chunk).size_bytes:,}"
        )
    if zlib.crc32(view) != int(footer.checks[chunk]):
        raise CorruptDataError("a chunk of a key index run is damaged: its checksum differs")
    words = np.frombuffer(view, "<u8", count)
    others = None if footer.columns.is_exact else np.frombuffer(view, "<u4", count, 8 * count)
    rows = np.frombuffer(view, "<u4", count, (width - 4) * count)
    in_order = bool((words[1:] >= words[:-1]).all()) and words[0] == footer.firsts[chunk]
    if not in_order or int(rows.max()) >= footer.num_rows:
        raise CorruptDataError(
            "a chunk of a key index run is damaged: its keys are not sorted, or a row number is "
            "out of range"
        )
    return Keys(words, others, rows)


class RunEncoder:
    """Encodes a run incrementally from keys in order.

    Args:
        columns: The description of the keys.
        files: The files that the run covers.
    """

    def __init__(self, columns: KeyColumns, files: Sequence[CoveredFile]) -> None:
        self._columns = columns
        self._files = tuple(files)
        self._pending: list[Keys] = []
        self._num_pending = self._num_keys = 0
        self._firsts: list[int] = []
        self._checks: list[int] = []

    def add(self, keys: Keys) -> Iterator[bytes]:
        """Add the next keys; yield the chunks that are now complete."""
        if len(keys.words):
            self._pending.append(keys)
            self._num_pending += len(keys.words)
        if self._num_pending >= CHUNK_ROWS:
            pending = joined(self._pending)
            whole = self._num_pending - self._num_pending % CHUNK_ROWS
            for start in range(0, whole, CHUNK_ROWS):
                yield self._chunk(_slice(pending, start, start + CHUNK_ROWS))
            self._pending = [_slice(pending, whole, self._num_pending)]
            self._num_pending -= whole

    def end(self) -> Iterator[bytes]:
        """Yield the rest of the file."""
        if self._num_pending:
            yield self._chunk(joined(self._pending))
        self._pending, self._num_pending = [], 0
        yield from self._footer()

    @property
    def footer(self) -> RunFooter:
        """The footer; valid after `end`."""
        return RunFooter(
            self._columns,
            self._num_keys,
            self._files,
            np.array(self._firsts, np.uint64),
            np.array(self._checks, np.uint32),
        )

    def _chunk(self, keys: Keys) -> bytes:
        data = encode_chunk(keys)
        self._num_keys += len(keys.words)
        self._firsts.append(int(keys.words[0]))
        self._checks.append(zlib.crc32(data))
        return data

    def _footer(self) -> Iterator[bytes]:
        data = encode_footer(self.footer)
        yield data
        yield struct.pack("<Q", len(data)) + _digest(data) + _MAGIC


def encode_footer(footer: RunFooter) -> bytes:
    """Return the bytes of a footer."""
    columns = footer.columns
    header = json.dumps(
        {
            "fields": columns.field_ids,
            "types": columns.types,
            "exact": columns.is_exact,
            "seeds": columns.seeds,
            "keys": footer.num_keys,
            "files": len(footer.files),
        }
    ).encode()
    positions = b"".join(
        column.file + struct.pack("<i", column.column)
        for file in footer.files
        for column in file.file
    )
    return b"".join(
        [
            struct.pack("<I", len(header)),
            header,
            footer.firsts.astype("<u8").tobytes(),
            footer.checks.astype("<u4").tobytes(),
            np.array([file.num_rows for file in footer.files], "<u4").tobytes(),
            positions,
        ]
    )


def footer_bytes(trailer: Any) -> int:
    """Return the size of the footer, which precedes the trailer.

    Args:
        trailer: The last `TRAILER_BYTES` of the file.

    Raises:
        CorruptDataError: It is not a trailer of this release.
    """
    data = bytes(trailer)
    if len(data) != TRAILER_BYTES or not data.endswith(_MAGIC):
        raise CorruptDataError("the file is not a key index run of this release")
    (size,) = struct.unpack_from("<Q", data)
    if size > MAX_FOOTER_BYTES:
        raise CorruptDataError(
            f"the footer of a key index run claims {size:,} bytes, more than {MAX_FOOTER_BYTES:,}"
        )
    return int(size)


def decode_footer(data: Any, trailer: Any, file_bytes: int) -> RunFooter:
    """Return the footer of a run.

    Args:
        data: The bytes of the footer.
        trailer: The bytes of the trailer.
        file_bytes: The size of the whole file.

    Raises:
        CorruptDataError: The footer is damaged, or does not belong to the file.
    """
    data = bytes(data)
    if len(data) != footer_bytes(trailer) or _digest(data) != bytes(trailer)[8 : 8 + _DIGEST_BYTES]:
        raise CorruptDataError("the footer of a key index run is damaged: its checksum differs")
    try:
        footer = _parsed(data)
    except (
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        struct.error,
        RecursionError,
    ) as error:
        raise CorruptDataError(f"the footer of a key index run is invalid: {error}") from error
    expected = footer.num_keys * footer.columns.row_bytes + len(data) + TRAILER_BYTES
    if file_bytes != expected or not footer.num_keys <= footer.num_rows <= MAX_ROWS:
        raise CorruptDataError(
            f"a key index run has {file_bytes:,} bytes and {footer.num_rows:,} rows, which does "
            f"not match its {footer.num_keys:,} keys"
        )
    return footer


def _parsed(data: bytes) -> RunFooter:
    (size,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + size])
    columns = KeyColumns(
        tuple(int(field_id) for field_id in header["fields"]),
        tuple(str(kind) for kind in header["types"]),
        bool(header["exact"]),
        (int(header["seeds"][0]), int(header["seeds"][1])),
    )
    num_keys, num_files = int(header["keys"]), int(header["files"])
    if min(num_keys, num_files, *columns.seeds) < 0 or max(columns.seeds) >= 1 << 64:
        raise ValueError("a number is out of range")
    num_chunks = -(-num_keys // CHUNK_ROWS)
    width = len(columns.field_ids)
    location_bytes = _FILE_BYTES + 4
    first_location = 4 + size + 12 * num_chunks + 4 * num_files
    if len(data) != first_location + num_files * width * location_bytes or not width:
        raise ValueError("its length does not match its counts")
    firsts = np.frombuffer(data, "<u8", num_chunks, 4 + size)
    checks = np.frombuffer(data, "<u4", num_chunks, 4 + size + 8 * num_chunks)
    counts = np.frombuffer(data, "<u4", num_files, 4 + size + 12 * num_chunks).tolist()
    if not bool((firsts[1:] >= firsts[:-1]).all()):
        raise ValueError("its chunks are not sorted")
    positions = [
        FileColumn(data[at : at + _FILE_BYTES], struct.unpack_from("<i", data, at + _FILE_BYTES)[0])
        for at in range(first_location, len(data), location_bytes)
    ]
    files = tuple(
        CoveredFile(tuple(positions[at * width : (at + 1) * width]), count)
        for at, count in enumerate(counts)
    )
    return RunFooter(columns, num_keys, files, firsts, checks)


def joined(parts: Sequence[Keys]) -> Keys:
    """Return the concatenated keys of at least one part."""
    if len(parts) == 1:
        return parts[0]
    others = [part.others for part in parts if part.others is not None]
    return Keys(
        np.concatenate([part.words for part in parts]),
        np.concatenate(others) if others else None,
        np.concatenate([part.rows for part in parts]),
    )


def _slice(keys: Keys, start: int, stop: int) -> Keys:
    others = None if keys.others is None else keys.others[start:stop]
    return Keys(keys.words[start:stop], others, keys.rows[start:stop])


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
