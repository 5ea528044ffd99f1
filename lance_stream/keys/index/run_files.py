"""The saved runs of the key index, which processes share, and local copies of their chunks.

A run (`run_format`) is immutable. A process copies the chunks that it needs to a private temporary
file without a name, checks them, and maps this file to memory. It never maps a file that others can
access, because truncating a mapped file kills the process. A run that is unreadable or damaged is
skipped, and the key columns are read instead.

Runs of similar size are merged (`run_merging`), so that there are few.
"""

import logging
import mmap
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from lance_stream.arrays import Positions, U64s
from lance_stream.byte_ranges import ByteRange
from lance_stream.caches import Cache
from lance_stream.errors import CorruptDataError, NotFoundError
from lance_stream.keys.index.run_format import (
    CHUNK_ROWS,
    TRAILER_BYTES,
    CoveredFile,
    KeyColumns,
    Keys,
    RunEncoder,
    RunFooter,
    U32s,
    decode_chunk,
    decode_footer,
    footer_bytes,
)
from lance_stream.keys.index.run_merging import RenumberedKeys, merged
from lance_stream.keys.index.sorted_words import SortedWords, spread
from lance_stream.storage.store import Store
from lance_stream.table.paths import KEY_INDEX_DIRECTORY, key_index_path, parse_key_index_name

_log = logging.getLogger(__name__)
_reported: Final[Cache[tuple[str, str], bool]] = Cache(1000)

MAX_LOCAL_BYTES: Final = 32 << 30
"""The maximum size of the runs that a process copies, in bytes."""

MAX_HITS: Final = 1 << 22
"""The maximum number of keys of a run that match the words of one batch; otherwise it is skipped.

A run in which all keys are equal would need memory for all of its rows.
"""

_MAX_OF_FREE: Final = 0.5
"""The maximum fraction of the free space in the temporary directory that a copy may take."""

_MAX_RUNS: Final = 1 << 12
_END_BYTES: Final = 1 << 18
_CHUNKS_AT_ONCE: Final = 32
# If a request costs no more than reading this number of bytes, reading a run twice is cheap.
_NEAR_BYTES: Final = 1 << 16
# Fewer missing chunks are copied immediately.
_MANY_CHUNKS: Final = 16


class RunUnavailableError(Exception):
    """A run can no longer be used; the key columns of its files must be read.

    Args:
        run: The run.
        is_damaged: Whether the run is damaged.
    """

    def __init__(self, run: "IndexRun", *, is_damaged: bool) -> None:
        super().__init__(run.path)
        self.run = run
        self.is_damaged = is_damaged


class Hits(NamedTuple):
    """The keys of a run that match target words.

    Attributes:
        which: (n,) i64, the positions of their words among those that were wanted.
        others: (n,) u32, further bits of the keys; None if words are exact.
        rows: (n,) u32, the numbers of the keys' rows.
    """

    which: Positions
    others: U32s | None
    rows: U32s


class IndexRun:
    """A run, with a local copy of the chunks that this process has needed. Thread-safe.

    Args:
        path: The path of the run.
        footer: The footer of the run.
        file: An empty file without a name, for the copy.

    Attributes:
        path: The path of the run.
        footer: The footer of the run.
        starts: (num_files + 1,) i64, the number of each file's first row, and the number of rows.
        numbers: (num_files,) i64, the numbers that the process gave to the files; -1 for a file
            that it ignores.
    """

    def __init__(self, path: str, footer: RunFooter, file: Any) -> None:
        self.path = path
        self.footer = footer
        counts = [file.num_rows for file in footer.files]
        self.starts: Positions = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.numbers: Positions = np.full(len(counts), -1, np.int64)
        self._was_searched = False
        self._is_local = np.zeros(len(footer.firsts), np.bool_)
        self._lock = threading.Lock()
        self._file = file
        count = footer.num_keys
        file.truncate(max(count * footer.columns.row_bytes, 1))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.words: U64s = np.frombuffer(mapped, "<u8", count)
        self._search = SortedWords(self.words)
        self.others: U32s | None = None
        if not footer.columns.is_exact:
            self.others = np.frombuffer(mapped, "<u4", count, 8 * count)
        self.rows: U32s = np.frombuffer(
            mapped, "<u4", count, (footer.columns.row_bytes - 4) * count
        )

    @property
    def num_bytes(self) -> int:
        """The maximum size of the copy in bytes."""
        return self.footer.num_keys * self.footer.columns.row_bytes

    def put(self, chunk: int, data: Any) -> None:
        """Copy a chunk that was checked."""
        view = memoryview(data)
        width, count = self.footer.columns.row_bytes, self.footer.num_keys
        num_keys = len(view) // width
        first = chunk * CHUNK_ROWS
        at = 0
        for begin, size in _sections(width, count):
            _write_at(self._file.fileno(), view[at : at + num_keys * size], begin + first * size)
            at += num_keys * size
        self._is_local[chunk] = True

    @property
    def num_missing(self) -> int:
        """The number of keys in the chunks that are not copied yet."""
        return min(int((~self._is_local).sum()) * CHUNK_ROWS, self.footer.num_keys)

    def fetch_all(self, store: Store) -> None:
        """Copy all chunks, in groups, so that a lookup of another thread waits for only one group.

        Raises:
            RunUnavailableError: A chunk cannot be read or copied.
        """
        chunks = np.arange(len(self._is_local))
        for start in range(0, len(chunks), _CHUNKS_AT_ONCE):
            self._fetch(store, chunks[start : start + _CHUNKS_AT_ONCE])

    def find(self, store: Store, targets: U64s) -> Hits:
        """Return the keys that match target words.

        The first lookup in a large run in a fast store copies nothing: a process that applies only
        one batch would not use the copy.

        Args:
            store: The table's store.
            targets: (n,) u64 words, ascending.

        Raises:
            RunUnavailableError: A chunk cannot be read or copied, or more than `MAX_HITS` keys
                match.
        """
        hits: list[Hits] = []
        num_hits = 0
        for search, keys, begin, end in self._parts(store, targets):
            firsts, counts = search.equal_to(targets[begin:end])
            num_hits += int(counts.sum())
            if num_hits > MAX_HITS:
                raise RunUnavailableError(self, is_damaged=False)
            positions, which = spread(firsts, counts)
            others = None if keys.others is None else keys.others[positions]
            hits.append(Hits(which + begin, others, keys.rows[positions]))
        return _joined(hits)

    def _parts(self, store: Store, targets: U64s) -> Iterator[tuple[SortedWords, Keys, int, int]]:
        """Yield the parts of the run to search, their keys, and the range of targets for each.

        The only part is the whole run if this process has copied it; otherwise, parts are chunks.
        """
        if bool(self._is_local.all()):
            yield self._search, Keys(self.words, self.others, self.rows), 0, len(targets)
            return
        firsts = self.footer.firsts
        # The targets that each chunk may hold. Equal words may start at the end of one chunk and
        # continue in the next ones.
        begins = np.searchsorted(targets, firsts, "left")
        ends = np.append(np.searchsorted(targets, firsts[1:], "right"), len(targets))
        chunks = np.flatnonzero(ends > begins)
        is_first, self._was_searched = not self._was_searched, True
        num_missing = int((~self._is_local[chunks]).sum())
        if is_first and num_missing >= _MANY_CHUNKS and store.bytes_per_request <= _NEAR_BYTES:
            parts = self._read_in_passing(store, chunks)
        else:
            self._fetch(store, chunks)
            parts = ((chunk, self._chunk(chunk)) for chunk in chunks.tolist())
        for chunk, keys in parts:
            yield SortedWords(keys.words), keys, int(begins[chunk]), int(ends[chunk])

    def _read_in_passing(self, store: Store, chunks: Positions) -> Iterator[tuple[int, Keys]]:
        """Yield the keys of some chunks; copies none of them."""
        for start in range(0, len(chunks), _CHUNKS_AT_ONCE):
            some = chunks[start : start + _CHUNKS_AT_ONCE].tolist()
            yield from ((chunk, keys) for chunk, _, keys in self._read(store, some))

    def _chunk(self, chunk: int) -> Keys:
        """Return the keys of a chunk that is copied."""
        part = slice(chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS)
        return Keys(
            self.words[part], None if self.others is None else self.others[part], self.rows[part]
        )

    def _fetch(self, store: Store, chunks: Positions) -> None:
        with self._lock:
            missing = chunks[~self._is_local[chunks]].tolist()
            for start in range(0, len(missing), _CHUNKS_AT_ONCE):
                chunks_read = self._read(store, missing[start : start + _CHUNKS_AT_ONCE])
                try:
                    for chunk, data, _ in chunks_read:
                        self.put(chunk, data)
                except OSError as error:  # the temporary directory is full: the run is optional
                    report_failure(store.uri, "cannot copy a run", error)
                    raise RunUnavailableError(self, is_damaged=False) from error

    def _read(self, store: Store, chunks: Sequence[int]) -> list[tuple[int, Any, Keys]]:
        """Read some chunks and check them; return their numbers, bytes and keys."""
        try:
            ranges = [self.footer.chunk_range(chunk) for chunk in chunks]
            return [
                (chunk, data, decode_chunk(data, self.footer, chunk))
                for chunk, data in zip(chunks, store.read_ranges(self.path, ranges), strict=True)
            ]
        except CorruptDataError as error:
            raise RunUnavailableError(self, is_damaged=True) from error
        except Exception as error:  # from any store: the run is optional
            report_failure(store.uri, "cannot read a run", error)
            raise RunUnavailableError(self, is_damaged=False) from error


def _joined(hits: Sequence[Hits]) -> Hits:
    """Return the hits in all parts of a run."""
    if len(hits) == 1:
        return hits[0]
    others = [part.others for part in hits if part.others is not None]
    return Hits(
        np.concatenate([part.which for part in hits] or [np.empty(0, np.int64)]),
        np.concatenate(others) if others else None,
        np.concatenate([part.rows for part in hits] or [np.empty(0, np.uint32)]),
    )


def _sections(width: int, count: int) -> list[tuple[int, int]]:
    """Return the offset of each array in a copy, and the size of its items."""
    sizes = (8, 4) if width == 12 else (8, 4, 4)
    begins = np.concatenate([[0], np.cumsum(sizes)]) * count
    return list(zip(begins.tolist(), sizes, strict=False))


def _write_at(file: int, data: memoryview, position: int) -> None:
    while data:
        num_written = os.pwrite(file, data, position)
        data, position = data[num_written:], position + num_written


def write_run(
    store: Store, columns: KeyColumns, files: Sequence[CoveredFile], parts: Sequence[RenumberedKeys]
) -> IndexRun | None:
    """Write a run, and return it with a complete local copy; None if either fails.

    Args:
        store: The table's store.
        columns: The description of the keys.
        files: The files that the run covers.
        parts: The keys.
    """
    path = key_index_path(columns.field_ids[0], secrets.token_bytes(16))
    encoder = RunEncoder(columns, files)
    size = sum(len(part.source.words) for part in parts) * columns.row_bytes
    try:
        if not _has_room(2 * size):
            return None
        with tempfile.TemporaryFile(prefix=_PREFIX) as chunks:
            with store.open_writer(path) as writer:
                for keys in merged(parts):
                    for data in encoder.add(keys):
                        writer.write(data)
                        chunks.write(data)
                num_chunks = len(encoder.footer.firsts)
                for data in encoder.end():
                    writer.write(data)
                    if num_chunks < len(encoder.footer.firsts):  # the last chunk
                        num_chunks += 1
                        chunks.write(data)
            chunks.flush()
            run = IndexRun(path, encoder.footer, _file())
            for chunk in range(num_chunks):
                chunk_range = encoder.footer.chunk_range(chunk)
                run.put(chunk, os.pread(chunks.fileno(), chunk_range.size_bytes, chunk_range.start))
            return run
    except Exception as error:  # from any store or disk: the run is optional
        report_failure(store.uri, "cannot write a run", error)
        return None


def report_failure(uri: str, problem: str, error: Exception) -> None:
    """Log that a part of the index cannot be used or extended, so that upserts read key columns.

    A problem is logged once per table.
    """
    if _reported.get((uri, problem)) is None:
        _reported.put((uri, problem), True)
        _log.warning("the key index of %s: %s; upserts take longer: %s", uri, problem, error)


_PREFIX: Final = "lance-stream-keys-"


def _file() -> Any:
    """Return a new file without a name, which closing deletes."""
    return tempfile.TemporaryFile(prefix=_PREFIX)


def list_runs(store: Store, columns: Sequence[int]) -> list[str] | None:
    """Return the sorted paths of a table's runs by first key column; None if listing fails."""
    names = _list_names(store)
    if names is None:
        return None
    runs = [name for name in names if parse_key_index_name(name) == columns[0]]
    return [f"{KEY_INDEX_DIRECTORY}/{name}" for name in runs[:_MAX_RUNS]]


def _list_names(store: Store) -> list[str] | None:
    try:
        return store.list_names(KEY_INDEX_DIRECTORY)
    except Exception as error:  # from any store: runs are optional
        report_failure(store.uri, "cannot list the runs", error)
        return None


def indexed_columns(store: Store) -> list[KeyColumns]:
    """Return the descriptions of the keys of a table's readable runs."""
    names = _list_names(store) or []
    runs = [name for name in names if parse_key_index_name(name) is not None][:_MAX_RUNS]
    footers = [footer_if_sound(store, f"{KEY_INDEX_DIRECTORY}/{name}") for name in runs]
    return [footer.columns for footer in footers if footer is not None]


def read_footer(store: Store, path: str) -> RunFooter:
    """Return the footer of a run.

    Raises:
        CorruptDataError: The run is damaged, or another release wrote it.
        Exception: Any error of the store.
    """
    end, size = store.read_end(path, _END_BYTES)
    trailer = end[-TRAILER_BYTES:]
    num_bytes = footer_bytes(trailer) + TRAILER_BYTES
    if num_bytes > size:
        raise CorruptDataError(
            f"a key index run has {size:,} bytes, fewer than the {num_bytes:,} of its footer"
        )
    if num_bytes > len(end):
        (end,) = store.read_ranges(path, [ByteRange(size - num_bytes, size)])
    return decode_footer(end[len(end) - num_bytes : len(end) - TRAILER_BYTES], trailer, size)


def footer_if_sound(store: Store, path: str) -> RunFooter | None:
    """Return the footer of a run; None if it cannot be read or is damaged."""
    try:
        return read_footer(store, path)
    except NotFoundError:
        return None  # another process has merged it
    except Exception as error:  # from any store: runs are optional
        report_failure(store.uri, "the footer of a run cannot be read", error)
        return None


def is_useless(store: Store, path: str, data_files: Container[bytes | None]) -> bool:
    """Return whether a run is damaged, or covers only files that no longer exist.

    Returns False if the run cannot be read.

    Args:
        store: The table's store.
        path: The path of the run.
        data_files: The random bytes of the names of the existing data files.
    """
    try:
        footer = read_footer(store, path)
    except CorruptDataError:
        return True
    except Exception as error:  # from any store: runs are optional
        report_failure(store.uri, "the footer of a run cannot be read", error)
        return False
    return not any(column.file in data_files for file in footer.files for column in file.file)


def open_run(path: str, footer: RunFooter, num_open: int) -> IndexRun | None:
    """Return a run with an empty local copy; None if there is no room for a copy.

    Args:
        path: The path of the run.
        footer: The footer of the run.
        num_open: The size of the copies of this process's other runs, in bytes.
    """
    size = footer.num_keys * footer.columns.row_bytes
    with suppress(OSError):
        if num_open + size <= MAX_LOCAL_BYTES and _has_room(size):
            return IndexRun(path, footer, _file())
    return None


def _has_room(num_bytes: int) -> bool:
    """Return whether the temporary directory has room for a copy."""
    return num_bytes <= _MAX_OF_FREE * shutil.disk_usage(tempfile.gettempdir()).free


def delete_runs(store: Store, paths: Iterable[str]) -> None:
    """Delete runs; best effort."""
    for path in paths:
        with suppress(Exception):  # from any store: another process can delete them later
            store.delete(path)
