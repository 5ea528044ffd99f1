"""A run of the index of keys: which rows of some data files have which keys, sorted by the key.

    _lance_stream/key_index/{id of the first key field}-{32 hex digits}.keys

    chunk, chunk, ...     of 65,536 keys each, the last one of what is left
    footer                what the run covers, and where each chunk begins
    trailer               48 bytes: u64 bytes of the footer · BLAKE2b-256 of the footer · magic

    chunk                 words   u64 each, ascending over the whole run; equal for equal keys
                          others  u32 each: further bits of the same keys; none if words are exact
                          rows    u32 each: the row's number among all rows of the run's files
    footer                u32 bytes of the header · header, JSON · firsts, u64: the first word of
                          each chunk · checks, u32: its CRC-32 · of each file: rows, u32; and for
                          each key column 16 random bytes of the file's name and its column, i32

All numbers are little-endian. Files and rows are numbered in the order of the footer: row 7 of the
second file has the number 7 + rows of the first file. A row whose key is null is in no chunk.

A word is the key itself if it is a number of up to 8 bytes. Other keys are known by 96 bits of two
hashes (`keys.hash_keys`), whose seeds are random and stated by the header: a writer of keys who
cannot read the table cannot look for two with the same hashes.

A run is a cache. Nothing in it is a path, and its numbers are checked before they are used.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError
from lance_stream.keys.file_columns import FileColumn

FileKey: TypeAlias = tuple[FileColumn, ...]
"""The columns of data files that hold the key columns of a fragment."""

U64: TypeAlias = npt.NDArray[np.uint64]
U32: TypeAlias = npt.NDArray[np.uint32]

CHUNK_ROWS: Final = 1 << 16
TRAILER_BYTES: Final = 48
MAX_FOOTER_BYTES: Final = 64 << 20
MAX_ROWS: Final = 1 << 28
"""Of how many rows a run is at most; a row's number fits into 32 bits."""

_MAGIC: Final = b"LSKEYS02"  # 01 had hashes that some keys share
_DIGEST_BYTES: Final = 32
_FILE_BYTES: Final = 16


class Covered(NamedTuple):
    """A file of which a run has all keys.

    Attributes:
        file: The columns that hold the keys.
        num_rows: How many rows its fragment states, including deleted ones.
    """

    file: FileKey
    num_rows: int


class KeyColumns(NamedTuple):
    """What the keys of a run are.

    Attributes:
        field_ids: The table's key columns, in order.
        types: Their types.
        is_exact: Whether equal words mean equal keys.
        seeds: The seeds of both hashes; of no meaning if words are exact.
    """

    field_ids: tuple[int, ...]
    types: tuple[str, ...]
    is_exact: bool
    seeds: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """The bytes of a key in a chunk."""
        return 12 if self.is_exact else 16


class Keys(NamedTuple):
    """Keys, ascending by their words.

    Attributes:
        words: (n,) u64.
        others: (n,) u32; None if words are exact.
        rows: (n,) u32 numbers of rows.
    """

    words: U64
    others: U32 | None
    rows: U32


class RunFooter(NamedTuple):
    """What a run states about itself.

    Attributes:
        columns: What its keys are.
        num_keys: How many it has.
        files: The files that it covers.
        firsts: (num_chunks,) u64, the first word of each chunk.
        checks: (num_chunks,) u32, the CRC-32 of each.
    """

    columns: KeyColumns
    num_keys: int
    files: tuple[Covered, ...]
    firsts: U64
    checks: U32

    @property
    def num_rows(self) -> int:
        """How many numbers of rows there are."""
        return sum(file.num_rows for file in self.files)

    def chunk_range(self, chunk: int) -> ByteRange:
        """Return where a chunk is in the file."""
        start = chunk * CHUNK_ROWS
        stop = min(start + CHUNK_ROWS, self.num_keys)
        return ByteRange(start * self.columns.row_bytes, stop * self.columns.row_bytes)


def encode_chunk(keys: Keys) -> bytes:
    """Return a chunk."""
    parts = [keys.words.astype("<u8", copy=False).tobytes()]
    if keys.others is not None:
        parts.append(keys.others.astype("<u4", copy=False).tobytes())
    parts.append(keys.rows.astype("<u4", copy=False).tobytes())
    return b"".join(parts)


def decode_chunk(data: Any, footer: RunFooter, chunk: int) -> Keys:
    """Return the keys of a chunk.

    Args:
        data: Its bytes.
        footer: The footer of its run.
        chunk: Its number.

    Raises:
        CorruptDataError: It is not what was written.
    """
    view = memoryview(data)
    width = footer.columns.row_bytes
    count, odd = divmod(len(view), width)
    if odd or len(view) != footer.chunk_range(chunk).size_bytes:
        raise CorruptDataError("a chunk of a run of keys is cut short")
    if zlib.crc32(view) != int(footer.checks[chunk]):
        raise CorruptDataError("a chunk of a run of keys is damaged")
    words = np.frombuffer(view, "<u8", count)
    others = None if footer.columns.is_exact else np.frombuffer(view, "<u4", count, 8 * count)
    rows = np.frombuffer(view, "<u4", count, (width - 4) * count)
    in_order = bool((words[1:] >= words[:-1]).all()) and words[0] == footer.firsts[chunk]
    if not in_order or int(rows.max()) >= footer.num_rows:
        raise CorruptDataError("a chunk of a run of keys is not in order")
    return Keys(words, others, rows)


class RunEncoder:
    """Encodes a run while its keys are passed, in order.

    Args:
        columns: What the keys are.
        files: The files that it covers.
    """

    def __init__(self, columns: KeyColumns, files: Sequence[Covered]) -> None:
        self._columns = columns
        self._files = tuple(files)
        self._pending: list[Keys] = []
        self._num_pending = self._num_keys = 0
        self._firsts: list[int] = []
        self._checks: list[int] = []

    def add(self, keys: Keys) -> Iterator[bytes]:
        """Add the next keys; yield the chunks that are complete."""
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
        """The footer, once all keys were passed."""
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
    """Return a footer."""
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
    """Return how many bytes of a file are before its trailer and belong to the footer.

    Args:
        trailer: The last `TRAILER_BYTES` of the file.

    Raises:
        CorruptDataError: It is no trailer of this release.
    """
    data = bytes(trailer)
    if len(data) != TRAILER_BYTES or not data.endswith(_MAGIC):
        raise CorruptDataError("it is no run of keys, or one of another release")
    (size,) = struct.unpack_from("<Q", data)
    if size > MAX_FOOTER_BYTES:
        raise CorruptDataError(f"the footer of a run of keys claims {size:,} bytes")
    return int(size)


def decode_footer(data: Any, trailer: Any, file_bytes: int) -> RunFooter:
    """Return the footer of a run.

    Args:
        data: Its bytes.
        trailer: The bytes after them.
        file_bytes: The size of the whole file.

    Raises:
        CorruptDataError: It is damaged, or belongs to another file.
    """
    data = bytes(data)
    if len(data) != footer_bytes(trailer) or _digest(data) != bytes(trailer)[8 : 8 + _DIGEST_BYTES]:
        raise CorruptDataError("the footer of a run of keys is damaged")
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
        raise CorruptDataError(f"the footer of a run of keys cannot be read: {error}") from error
    expected = footer.num_keys * footer.columns.row_bytes + len(data) + TRAILER_BYTES
    if file_bytes != expected or not footer.num_keys <= footer.num_rows <= MAX_ROWS:
        raise CorruptDataError("a run of keys is not as long as its footer states")
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
        raise ValueError("it has another length than its numbers")
    firsts = np.frombuffer(data, "<u8", num_chunks, 4 + size)
    checks = np.frombuffer(data, "<u4", num_chunks, 4 + size + 8 * num_chunks)
    counts = np.frombuffer(data, "<u4", num_files, 4 + size + 12 * num_chunks).tolist()
    if not bool((firsts[1:] >= firsts[:-1]).all()):
        raise ValueError("its chunks are not in order")
    positions = [
        FileColumn(data[at : at + _FILE_BYTES], struct.unpack_from("<i", data, at + _FILE_BYTES)[0])
        for at in range(first_location, len(data), location_bytes)
    ]
    files = tuple(
        Covered(tuple(positions[at * width : (at + 1) * width]), count)
        for at, count in enumerate(counts)
    )
    return RunFooter(columns, num_keys, files, firsts, checks)


def joined(parts: Sequence[Keys]) -> Keys:
    """Return the keys of at least one part, one after the other."""
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
