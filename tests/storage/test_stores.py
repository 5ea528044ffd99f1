import multiprocessing
import os
import shutil
import threading
import time
import uuid
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    UnsupportedFeatureError,
)
from lance_stream.storage import create_once
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from tests.contracts.stores import StoreContract

pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks"),
]


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "a table")


class TestDurableLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "a table", {"durable": "true"})


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_store(f"memory://{uuid.uuid4()}/a table")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="it needs Linux's /proc")
def test_unwritable_file_systems_are_named() -> None:
    """A read-only or virtual file system refuses in its own way, and the message must name the
    folder.
    """
    with pytest.raises(StoreRefusedError, match="'/proc' does not accept new folders"):
        LocalStore("/proc/table").write("data/file", b"")


@pytest.mark.parametrize("parts", [("a" * 256,), ("\u00e9" * 128,), ("a/" * 2100, "b")])
def test_overlong_paths_are_refused(parts: tuple[str, ...], tmp_path: Path) -> None:
    """The limit of 255 bytes counts encoded bytes, and every call must refuse alike before it
    creates anything.
    """
    store, path = LocalStore(str(tmp_path)), "".join(parts)
    for ask in (
        lambda: store.read(path),
        lambda: store.size(path),
        lambda: store.exists(path),
        lambda: store.list(path),
        lambda: store.list_names(path),
        lambda: store.list_files(path),
        lambda: store.create_once(path, b""),
        lambda: store.write(path, b""),
        lambda: store.delete(path),
    ):
        with pytest.raises(
            InvalidInputError, match=r"25[56] bytes, but a name can have 255|4,?095"
        ):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_names_can_reach_the_disks_limit(tmp_path: Path) -> None:
    """The suffix of the temporary file must not make a legal name too long."""
    store = LocalStore(str(tmp_path))
    for name in ("a" * 255, "a" * 232, "\u00e9" * 127, "\U0001f600" * 63):
        store.write(name, b"1")
        assert store.create_once(f"once/{name}", b"2")
        assert (store.read(name), store.read(f"once/{name}")) == (b"1", b"2")
        assert {file.path for file in store.list()} == {name, f"once/{name}"}
        for entry in store.list():
            store.delete(entry.path)


def test_threaded_range_reads_are_exact(tmp_path: Path) -> None:
    """Large ranges are read by several threads, whose pieces must meet without gaps."""
    data = os.urandom(1 << 16) * 200
    store = LocalStore(str(tmp_path))
    store.write("a", data)
    edges = [0, 1, 4 << 20, (4 << 20) + 1, 9_000_001, 9_000_099, len(data)]
    ranges = [ByteRange(*pair) for pair in pairwise(edges)]
    buffers = store.read_ranges("a", [*ranges, ByteRange(0, len(data))])
    assert b"".join(buffers[:-1]) == data
    assert bytes(buffers[-1]) == data


def test_files_truncated_during_reads_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that shrinks after its size was taken must yield fewer bytes, not a buffer of
    zeros.
    """
    store = LocalStore(str(tmp_path))
    store.write("a", bytes(6 << 20))
    real, calls = os.fstat, count(1)

    def cut(file: int) -> os.stat_result:
        status = real(file)
        if next(calls) == 2:  # the first look is whether it is a file, the second at its size
            os.truncate(tmp_path / "a", 100)
        return status

    monkeypatch.setattr(os, "fstat", cut)
    buffers = store.read_ranges("a", [ByteRange(0, 6 << 20), ByteRange(50, 150)])
    assert [len(buffer) for buffer in buffers] == [100, 50]


def test_ranges_beyond_ends_allocate_nothing(tmp_path: Path) -> None:
    """A corrupt offset must not allocate a buffer of 2**62 bytes."""
    store = LocalStore(str(tmp_path))
    store.write("a", b"12345678")
    (buffer,) = store.read_ranges("a", [ByteRange(4, 1 << 62)])
    assert bytes(buffer) == b"5678"


def test_killed_writers_leave_temporary_files(tmp_path: Path) -> None:
    """A half-written file must never appear under its final name; cleanup recognises the
    temporary one.
    """
    store = LocalStore(str(tmp_path))

    def die() -> None:
        store.open_writer("data/a").write(b"half")
        os._exit(9)

    child = multiprocessing.get_context("fork").Process(target=die)
    child.start()
    child.join()
    (remaining,) = store.list()
    assert remaining.path.startswith("data/.a.")
    assert remaining.path.endswith(".tmp")


@pytest.mark.parametrize("size", [4, 1 << 20])
@pytest.mark.parametrize("durable", [False, True])
def test_deleting_the_folder_fails_writers(tmp_path: Path, durable: bool, size: int) -> None:
    """The table was dropped during the write: no part of the file may remain, even if the folder
    exists again.
    """
    store = LocalStore(str(tmp_path / "table"), durable=durable)
    writer = store.open_writer("data/a")
    writer.write(bytes(size))
    shutil.rmtree(tmp_path / "table")
    store.write("data/b", b"of another table")
    with pytest.raises(NotFoundError, match="was deleted while a file was written to it"):
        writer.close()
    assert [file.path for file in store.list()] == ["data/b"]
    writer.close()  # as the end of a with statement does


@pytest.mark.parametrize("moment", ["open", "link"])
def test_deleting_the_folder_fails_create_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A table dropped while a manifest is written must not come back to life as a folder with
    one file.
    """
    store = LocalStore(str(tmp_path / "table"))
    real = getattr(os, moment)

    def delete_first(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(os, moment, real)
        shutil.rmtree(tmp_path / "table")
        return real(*arguments, **options)

    store.write("_versions/1", b"")
    monkeypatch.setattr(os, moment, delete_first)
    with pytest.raises(NotFoundError, match="was deleted while a file was written to it"):
        store.create_once("_versions/2", b"manifest")
    assert store.list() == []


def test_one_process_creates_a_name(tmp_path: Path) -> None:
    """Commits rely on this: exactly one of several processes may create a version."""
    context = multiprocessing.get_context("fork")
    num_rounds, num_processes = 10, 4
    start, wins = context.Barrier(num_processes), context.SimpleQueue()

    def create() -> None:
        store = LocalStore(str(tmp_path))
        for number in range(num_rounds):
            start.wait()
            if store.create_once(str(number), os.urandom(1 << 16)):
                wins.put(number)

    children = [context.Process(target=create) for _ in range(num_processes)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert sorted(wins.get() for _ in range(num_rounds)) == list(range(num_rounds))
    assert wins.empty()


def test_file_systems_need_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a hard link creates a version atomically, and a refused attempt must leave no file."""

    def no_links(*_args: object, **_options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = LocalStore(str(tmp_path))
    with pytest.raises(UnsupportedFeatureError, match="hard links") as caught:
        store.create_once("v/1", b"x")
    assert "gcsfuse, mountpoint-s3, blobfuse" in str(caught.value)
    assert "gs://, s3:// or az://" in str(caught.value)
    assert store.list() == []


def test_full_disks_are_not_missing_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at `link` must not be reported as a file system that lacks hard links."""

    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        LocalStore(str(tmp_path)).create_once("v/1", b"x")


def test_lost_link_replies_are_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS can create the link and report that it exists already, and the writer must recognise
    its own file.
    """
    real = os.link

    def link_twice(*args: object, **options: object) -> None:
        real(*args, **options)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", link_twice)
    store = LocalStore(str(tmp_path))
    assert store.create_once("v/1", b"x")
    assert store.list_names("v") == ["1"]


def test_created_names_survive_failed_folder_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is visible to others by then, so reporting a failure would make the writer commit
    twice.
    """

    def fail(_directory: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(create_once, "flush_names", fail)
    assert LocalStore(str(tmp_path)).create_once("v/1", b"x")


def test_creating_in_memory_is_atomic() -> None:
    """Checking for a key and setting it are two steps, between which another thread could win as
    well.
    """

    class SlowDict(dict[str, object]):
        def __contains__(self, key: object) -> bool:
            actual = super().__contains__(key)
            time.sleep(0.005)
            return actual

    files = SlowDict()
    start = threading.Barrier(8)
    won: list[int] = []

    def create(me: int) -> None:
        start.wait()
        if create_once.create_in_memory(files, "a", me):
            won.append(me)

    threads = [threading.Thread(target=create, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert won == [files["a"]]


def test_a_local_stores_root_is_absolute() -> None:
    """A relative root would name another table after a change of the working directory."""
    with pytest.raises(InvalidInputError, match="absolute"):
        LocalStore("relative")


def test_memory_listings_tolerate_vanishing_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """fsspec's memory filesystem raises `KeyError` if a file is deleted while it lists."""
    store = open_store("memory://listed-while-files-go")
    store.write("data/a", b"1")
    whole, calls = MemoryFileSystem.ls, count()

    def ls(self: MemoryFileSystem, path: str, detail: bool = True, **options: Any) -> Any:
        if next(calls) % 2 == 0:
            raise KeyError(path)  # of a file that has been listed, and is gone
        return whole(self, path, detail, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    assert [file.path for file in store.list("data")] == ["data/a"]
    assert store.list_names("data") == ["a"]
