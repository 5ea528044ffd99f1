"""What every store must keep to. A store's tests inherit `StoreContract`."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.storage.store import Store

DATA = bytes(range(256)) * 40


class StoreContract:
    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    @pytest.mark.each_service
    @pytest.mark.floors
    def test_written_files_are_read_back(self, store: Store) -> None:
        """Names with spaces and percent signs must not be decoded on the way."""
        store.write("data/a b%20c.lance", DATA)
        assert store.read("data/a b%20c.lance") == DATA
        assert store.size("data/a b%20c.lance") == len(DATA)
        assert store.exists("data/a b%20c.lance")

    def test_writing_again_replaces_the_file(self, store: Store) -> None:
        """The version hint is overwritten, also by a shorter text."""
        store.write("hint", DATA)
        store.write("hint", b"short")
        assert store.read("hint") == b"short"

    @pytest.mark.parametrize(
        "convert",
        [bytes, bytearray, memoryview, lambda d: np.frombuffer(d, np.uint64), pa.py_buffer],
    )
    def test_any_buffer_can_be_written(self, store: Store, convert: Callable[[bytes], Any]) -> None:
        """Writers hand on arrays and views without copying them."""
        with store.open_writer("a") as writer:
            writer.write(convert(DATA))
            writer.write(convert(b""))
            writer.write(convert(DATA))
        store.write("b", convert(DATA))
        assert store.create_once("c", convert(DATA))
        assert (store.read("a"), store.read("b"), store.read("c")) == (DATA * 2, DATA, DATA)

    def test_writers_copy_the_buffers_they_get(self, store: Store) -> None:
        """The caller may change a buffer once it is written."""
        buffer = bytearray(b"before")
        with store.open_writer("a") as writer:
            writer.write(buffer)
            buffer[:] = b"after!"
        assert store.read("a") == b"before"

    @pytest.mark.floors
    def test_ranges_come_back_as_ordered(self, store: Store) -> None:
        """Stores join and sort ranges, but callers match answers by position."""
        store.write("a", DATA)
        ranges = [
            ByteRange(*value) for value in [(9000, 9100), (0, 5), (3, 7), (7, 7), (5000, 9050)]
        ]
        buffers = store.read_ranges("a", ranges)
        assert [bytes(buffer) for buffer in buffers] == [DATA[r.start : r.stop] for r in ranges]

    def test_ranges_are_read_only_views(self, store: Store) -> None:
        """Buffers are cached and shared, and decoders rely on their alignment."""
        store.write("a", DATA)
        (buffer,) = store.read_ranges("a", [ByteRange(64, 128)])
        assert isinstance(buffer, memoryview)
        assert buffer.readonly
        assert np.frombuffer(buffer, np.uint8).ctypes.data % 8 == 0

    def test_joined_ranges_keep_their_alignment(self, store: Store) -> None:
        """Buffers begin at memory addresses that are aligned like their offsets in the file."""
        store.write("a", DATA)
        buffers = store.read_ranges("a", [ByteRange(3, 9), ByteRange(64, 128)])
        assert [bytes(buffer) for buffer in buffers] == [DATA[3:9], DATA[64:128]]
        assert np.frombuffer(buffers[1], np.uint8).ctypes.data % 8 == 0

    @pytest.mark.each_service
    @pytest.mark.floors
    def test_ends_of_files_include_sizes(self, store: Store) -> None:
        """The footer and the size are needed together to open a file."""
        store.write("a", DATA)
        for num_bytes in (1, 100, len(DATA), len(DATA) + 9):
            end, size = store.read_end("a", num_bytes)
            assert (bytes(end), size) == (DATA[-num_bytes:], len(DATA))
        store.write("empty", b"")
        end, size = store.read_end("empty", 10)
        assert (bytes(end), size) == (b"", 0)
        with pytest.raises(NotFoundError, match="missing"):
            store.read_end("missing", 10)

    @pytest.mark.each_service
    @pytest.mark.floors
    def test_a_copy_is_an_independent_file(self, store: Store) -> None:
        """A staged manifest is deleted after it was copied to its final name."""
        store.write("v/1-staged", DATA)
        store.write("v/2", b"older")
        store.copy("v/1-staged", "v/1")
        store.copy("v/1-staged", "v/2")
        store.delete("v/1-staged")
        assert (store.read("v/1"), store.read("v/2")) == (DATA, DATA)
        with pytest.raises(NotFoundError, match="v/1-staged"):
            store.copy("v/1-staged", "v/3")
        assert not store.exists("v/3")

    @pytest.mark.each_service
    def test_ranges_beyond_the_end_come_short(self, store: Store) -> None:
        """The caller recognises a truncated file by the missing bytes."""
        store.write("a", DATA)
        end = len(DATA)
        ranges = [
            ByteRange(end - 3, end + 9),
            ByteRange(end + 1, end + 2),
            ByteRange(1 << 60, 1 << 61),
        ]
        assert [bytes(span) for span in store.read_ranges("a", ranges)] == [DATA[-3:], b"", b""]

    def test_empty_requests_still_need_the_file(self, store: Store) -> None:
        """A missing file must be reported by every way of reading it."""
        store.write("a", DATA)
        assert store.read_ranges("a", []) == []
        with pytest.raises(NotFoundError):
            store.read_ranges("b", [])

    @pytest.mark.each_service
    @pytest.mark.floors
    @pytest.mark.parametrize("path", ["b", "folder/b", "folder", "folder/a/b"])
    def test_a_missing_file_is_named(self, store: Store, path: str) -> None:
        """The error is all that the user has when a file was deleted."""
        store.write("folder/a", DATA)
        assert not store.exists(path)
        for attempt in (
            lambda: store.read(path),
            lambda: store.size(path),
            lambda: store.read_ranges(path, [ByteRange(0, 1)]),
        ):
            with pytest.raises(NotFoundError, match=path):
                attempt()

    def test_an_unclosed_file_does_not_exist(self, store: Store) -> None:
        """Readers and cleanups must never see a partial file."""
        writer = store.open_writer("data/a")
        writer.write(DATA)
        assert not store.exists("data/a")
        assert "a" not in store.list_names("data")
        writer.close()
        assert store.read("data/a") == DATA

    def test_a_failing_writer_leaves_nothing(self, store: Store) -> None:
        """A partial file under the final name would be read as a damaged one."""

        def fail() -> None:
            with store.open_writer("data/a") as writer:
                writer.write(DATA)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert store.list() == []

    def test_aborting_after_closing_keeps_the_file(self, store: Store) -> None:
        """Cleanup after an error may meet writers that have finished."""
        writer = store.open_writer("a")
        writer.write(DATA)
        writer.close()
        writer.abort()
        writer.close()
        assert store.read("a") == DATA

    def test_a_closed_writer_accepts_nothing(self, store: Store) -> None:
        """Bytes that arrive after the end would be lost silently."""
        writer = store.open_writer("a")
        writer.close()
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"x")

    @pytest.mark.each_service
    def test_an_empty_file_is_a_file(self, store: Store) -> None:
        """Services treat empty bodies as a special case."""
        store.write("a", b"")
        assert store.read("a") == b""
        assert store.size("a") == 0
        assert [bytes(span) for span in store.read_ranges("a", [ByteRange(0, 4)])] == [b""]

    @pytest.mark.each_service
    @pytest.mark.floors
    def test_a_listing_has_files_and_sizes(self, store: Store) -> None:
        """A listing contains all files below a folder, at any depth."""
        for path in ("data/b", "data/a", "data/x/c", "other/d", "top"):
            store.write(path, path.encode())
        assert [file.path for file in store.list()] == [
            "data/a", "data/b", "data/x/c", "other/d", "top",
        ]  # fmt: skip
        assert [(file.path, file.size_bytes) for file in store.list("data")] == [
            ("data/a", 6), ("data/b", 6), ("data/x/c", 8),
        ]  # fmt: skip
        assert all(1.6e9 < file.modified < 1e11 for file in store.list())

    @pytest.mark.each_service
    def test_folders_list_their_files_sorted(self, store: Store) -> None:
        """The newest version is the first name, and folders are no versions."""
        for path in ("v/10", "v/9", "v/sub/8", "vv/7"):
            store.write(path, b"")
        assert store.list_names("v") == ["10", "9"]
        assert store.list_names("v", limit=1) == ["10"]
        assert store.list_names("v", limit=7) == ["10", "9"]

    def test_a_folders_own_files_have_sizes(self, store: Store) -> None:
        """Reading the end of a file needs its size, which the listing knows."""
        for path in ("v/10", "v/9", "v/sub/8", "vv/7"):
            store.write(path, path.encode())
        files = store.list_files("v")
        assert [(file.path, file.size_bytes) for file in files] == [("v/10", 4), ("v/9", 3)]
        assert [file.path for file in store.list_files("v", limit=1)] == ["v/10"]
        assert store.list_files("w") == []

    @pytest.mark.each_service
    def test_an_etag_changes_with_the_bytes(self, store: Store) -> None:
        """Caches recognise a replaced file by it."""
        store.write("v/1", b"first")
        (first,) = store.list_files("v")
        assert store.list_files("v") == [first]
        store.write("v/1", b"other")
        (other,) = store.list_files("v")
        assert not first.etag or first.etag != other.etag

    @pytest.mark.each_service
    def test_a_missing_folder_lists_nothing(self, store: Store) -> None:
        """Object services have no folders, so absence is the same as emptiness."""
        assert store.list_names("v") == []
        assert store.list("v") == []
        assert store.list() == []

    def test_a_listing_is_never_stale(self, store: Store) -> None:
        """A writer that misses the newest version would commit it again."""
        other = pickle.loads(pickle.dumps(store))
        assert store.list_names("v") == []
        other.write("v/1", b"")
        assert store.list_names("v") == ["1"]
        other.delete("v/1")
        assert store.list_names("v") == []
        assert not store.exists("v/1")

    @pytest.mark.each_service
    @pytest.mark.floors
    def test_deleting_is_idempotent(self, store: Store) -> None:
        """A cleanup that was interrupted starts again."""
        store.write("a", DATA)
        store.delete("a")
        store.delete("a")
        assert not store.exists("a")

    @pytest.mark.each_service
    @pytest.mark.floors
    def test_a_name_is_created_once(self, store: Store) -> None:
        """Commits rest on this promise alone."""
        assert store.create_once("v/1", b"first")
        assert not store.create_once("v/1", b"second")
        assert store.read("v/1") == b"first"
        assert store.list_names("v") == ["1"]

    def test_an_existing_file_cannot_be_created(self, store: Store) -> None:
        """The loser of a race must not replace the winner's manifest."""
        store.write("v/1", b"first")
        assert not store.create_once("v/1", b"second")
        assert store.read("v/1") == b"first"

    def test_one_of_many_creates_a_name(self, store: Store) -> None:
        """A check before the write, instead of a condition, would let two of them win."""
        num_threads, num_rounds = 8, 25
        start = threading.Barrier(num_threads)
        won: list[list[int]] = [[] for _ in range(num_rounds)]

        def create(me: int) -> None:
            for number in range(num_rounds):
                start.wait()
                if store.create_once(f"v/{number}", str(me).encode() * 5000):
                    won[number].append(me)

        threads = [threading.Thread(target=create, args=(me,)) for me in range(num_threads)]
        for thread in threads:
            thread.start()
        for worker in threads:
            worker.join()
        assert [len(value) for value in won] == [1] * num_rounds
        for number, (winner,) in enumerate(won):
            assert store.read(f"v/{number}") == str(winner).encode() * 5000

    @pytest.mark.parametrize("path", ["/etc/passwd", "../a", "data/../../a", "..", "a\0b"])
    def test_no_path_leaves_the_store(self, store: Store, path: str) -> None:
        """Paths come from manifests that others wrote."""
        for attempt in (
            lambda: store.read(path),
            lambda: store.read_ranges(path, []),
            lambda: store.write(path, b""),
            lambda: store.open_writer(path).close(),
            lambda: store.create_once(path, b""),
            lambda: store.delete(path),
            lambda: store.list(path),
        ):
            with pytest.raises(InvalidInputError, match="leaves the root of its store"):
                attempt()

    @pytest.mark.each_service
    def test_pickled_stores_are_the_same(self, store: Store) -> None:
        """Spark sends stores from the driver to its executors."""
        store.write("a", DATA)
        again = pickle.loads(pickle.dumps(store))
        assert again == store
        assert again.uri == store.uri
        assert again.read("a") == DATA
