"""Filesystems that a user has registered with fsspec: tables on them are read, never written."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

import lance_stream
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedFeatureError,
    UntrustedLocationError,
)
from lance_stream.storage import store as store_module
from lance_stream.storage import trust
from lance_stream.storage.fsspec_store import FsspecStore
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store

ROWS = pa.table({"id": list(range(1000)), "name": [f"n{number}" for number in range(1000)]})


class Shelf(DirFileSystem):
    """A folder of this machine as a filesystem of another protocol."""

    protocol = "shelf"
    cachable = False
    faults: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: str, **more: Any) -> None:
        super().__init__(path=base, fs=LocalFileSystem(), **more)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        if "cat" in self.faults:
            raise self.faults["cat"]
        data = super().cat_file(path, start=start, end=end, **more)
        return bytes(data[: self.faults.get("short", len(data))])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    Shelf.faults.clear()
    yield tmp_path
    _registry.pop("shelf")


@pytest.fixture
def options(folder: Path) -> dict[str, Any]:
    return {"fsspec": {"base": str(folder)}}


@pytest.fixture
def store(folder: Path, options: dict[str, Any]) -> Store:
    (folder / "t" / "data").mkdir(parents=True)
    (folder / "t" / "data" / "a.bin").write_bytes(bytes(range(100)))
    (folder / "t" / "empty").write_bytes(b"")
    return open_store("shelf://t", options)


def test_a_table_is_read_and_followed(folder: Path, options: dict[str, Any]) -> None:
    """Opening, filtering, changes and verification must all work on a filesystem of which only
    fsspec's interface is known.
    """
    dataset = lance_stream.create_dataset(folder / "t", ROWS.schema).append(ROWS)
    dataset.delete("id < 10")
    ds = lance_stream.open_dataset("shelf://t", storage_options=options)
    assert ds.to_table().equals(ROWS.slice(10))
    assert ds.to_table(filter="id = 500")["name"].to_pylist() == ["n500"]
    assert ds.changes(2).read_all()["id"].to_pylist() == list(range(10))
    assert ds.verify() == []


def test_registered_filesystems_are_never_written(folder: Path, options: dict[str, Any]) -> None:
    """fsspec has no atomic creation of a name, so a commit through it could overwrite that of
    another writer.
    """
    dataset = lance_stream.create_dataset(folder / "t", ROWS.schema).append(ROWS)
    before = sorted(str(path) for path in folder.rglob("*"))
    ds = lance_stream.open_dataset("shelf://t", storage_options=options)
    for write in (
        lambda: ds.append(ROWS),
        lambda: ds.delete("id = 1"),
        lambda: ds.overwrite(ROWS),
        lambda: ds.upsert(ROWS, on="id"),
        lambda: ds.tags.create("a", 1),
    ):
        with pytest.raises(UnsupportedFeatureError, match="read-only"):
            write()
    assert sorted(str(path) for path in folder.rglob("*")) == before
    assert dataset.checkout(None).version == dataset.version


def test_ranges_past_the_end_are_cut(store: Store) -> None:
    """fsspec's filesystems differ in how they treat ranges past the end, empty ranges and empty
    files.
    """
    ranges = [ByteRange(90, 200), ByteRange(3, 5), ByteRange(100, 120), ByteRange(7, 7)]
    actual = [bytes(span) for span in store.read_ranges("data/a.bin", ranges)]
    assert actual == [bytes(range(90, 100)), b"\x03\x04", b"", b""]
    assert [(bytes(data), size) for data, size in [store.read_end("data/a.bin", 3)]] == [
        (b"abc", 100)
    ]
    assert store.read_end("empty", 3) == (b"", 0)
    assert store.read("empty") == b""
    assert store.exists("empty")
    assert not store.exists("data")


def test_listings_are_fresh_and_sorted(store: Store, folder: Path) -> None:
    """Follow-up reads depend on a listing that shows new files at once, and on the order of
    names.
    """
    assert [file.path for file in store.list()] == ["data/a.bin", "empty"]
    (folder / "t" / "data" / "0.bin").write_bytes(b"1")
    assert store.list_names("data") == ["0.bin", "a.bin"]
    assert [(file.path, file.size_bytes) for file in store.list_files("data", 1)] == [
        ("data/0.bin", 1)
    ]
    assert all(file.modified > 0 for file in store.list())
    assert store.list("nowhere") == []
    assert store.list_names("nowhere") == []


class Attic(Shelf):
    """A filesystem that answers from the listings which it has seen, as most of networks do."""

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **more)
        return self.dircache[path] if detail else [row["name"] for row in self.dircache[path]]

    def info(self, path: str, **more: Any) -> Any:
        for row in self.ls(self._parent(path), **more):
            if row["name"] == path:
                return row
        raise FileNotFoundError(path)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        size = self.info(path)["size"]
        return super().cat_file(path, start, size if end is None else min(end, size), **more)

    def invalidate_cache(self, path: str | None = None) -> None:
        if path is None:
            self.dircache.clear()
        else:
            self.dircache.pop(path, None)


def test_cached_listings_of_filesystems_are_bypassed(folder: Path) -> None:
    """Many filesystems cache their listings, and would hide files and sizes that another process
    has written since.
    """
    fsspec.register_implementation("shelf", Attic, clobber=True)
    attic = Attic(base=str(folder))
    fsspec.register_implementation("shelf", lambda **_: attic, clobber=True)
    files = folder / "t" / "data"
    files.mkdir(parents=True)
    (files / "a").write_bytes(b"1")
    store = open_store("shelf://t", {})
    assert store.list_names("data") == ["a"]
    (files / "b").write_bytes(b"22")
    assert store.exists("data/b")
    (files / "c").write_bytes(b"333")
    assert [bytes(span) for span in store.read_ranges("data/c", [ByteRange(1, 3)])] == [b"33"]
    (files / "d").write_bytes(b"4444")
    assert store.read_end("data/d", 2) == (b"44", 4)
    (files / "a").write_bytes(b"1 and more")
    assert store.read("data/a") == b"1 and more"


@pytest.mark.parametrize("act", ["read", "size", "read_end", "read_ranges"])
def test_a_missing_file_is_named(store: Store, act: str) -> None:
    """fsspec raises `FileNotFoundError` at different moments, and each has to become our error
    with the URI.
    """
    more = {"read_end": (4,), "read_ranges": ([ByteRange(0, 4)],)}.get(act, ())
    with pytest.raises(NotFoundError, match=r"shelf://t/no\.bin"):
        getattr(store, act)("no.bin", *more)


def test_filesystem_errors_become_store_errors(store: Store) -> None:
    """Callers handle store errors only, while an fsspec implementation may raise any exception."""
    Shelf.faults["cat"] = PermissionError("not you")
    with pytest.raises(StoreRefusedError, match="not you"):
        store.read("empty")
    Shelf.faults["cat"] = KeyError("its own")
    with pytest.raises(StoreUnavailableError, match="KeyError"):
        store.read("empty")


def test_ranges_cut_short_are_noticed(store: Store) -> None:
    """A filesystem that returns fewer bytes than exist would otherwise hand truncated pages to
    the decoder.
    """
    Shelf.faults["short"] = 1
    with pytest.raises(StoreUnavailableError, match="truncates ranges"):
        store.read_ranges("data/a.bin", [ByteRange(3, 9)])


def test_a_pickled_store_reads(store: Store) -> None:
    """Spark sends stores to its workers, which open the filesystem anew from protocol and
    options.
    """
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert again.read("data/a.bin") == bytes(range(100))


def test_unregistered_protocols_are_refused() -> None:
    """Without an implementation no read can work, and the message says that the protocol is
    unknown.
    """
    with pytest.raises(UnsupportedFeatureError, match="its protocol is unknown"):
        open_store("unheard://bucket/t")


@pytest.mark.parametrize("uri", ["http://host/t", "hdfs://host/t", "dbfs://x/t"])
def test_registering_a_refused_protocol_changes_nothing(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether fsspec could read such a URI makes no difference."""
    monkeypatch.setitem(_registry, uri.partition(":")[0], Shelf)
    with pytest.raises(UnsupportedFeatureError):
        open_store(uri)


@pytest.mark.parametrize("uri", ["shelf://", "shelf://a/../b", "shelf:///"])
def test_incomplete_uris_name_no_table(uri: str, options: dict[str, Any]) -> None:
    """A URI without a path would make the whole filesystem the table."""
    with pytest.raises(InvalidInputError):
        open_store(uri, options)


def test_paths_cannot_leave_the_root(store: Store) -> None:
    """A manifest is untrusted input, and a path with `..` in it could read any file of the
    filesystem.
    """
    with pytest.raises(InvalidInputError, match="leaves the root"):
        store.read("../secret")


def test_other_tables_cannot_name_registered_protocols(
    folder: Path, options: dict[str, Any]
) -> None:
    """A protocol that the reader has registered is not one that a table may choose."""
    dataset = lance_stream.create_dataset(folder / "t", ROWS.schema).append(ROWS)
    with pytest.raises(UntrustedLocationError):
        dataset.table.files.store_of("shelf://t")


@pytest.fixture
def local() -> Iterator[None]:
    """fsspec's own protocol "local", registered as on its first use in a process."""
    was_registered = "local" in _registry
    fsspec.filesystem("local")
    yield
    if not was_registered:
        _registry.pop("local")


@pytest.mark.usefixtures("local")
def test_local_tables_name_no_registered_filesystems(tmp_path: Path) -> None:
    """Once fsspec is in use it offers the local disk by further protocols, by which a table
    could read its reader's files.
    """
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_bytes(b"private")
    dataset = lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    for location in (f"local://{tmp_path}/secrets", f"LOCAL:{tmp_path}/secrets"):
        with pytest.raises(CorruptDataError, match="cannot be opened"):
            dataset.table.files.store_of(location)


@pytest.mark.usefixtures("local")
def test_fsspecs_local_disk_is_not_ours(tmp_path: Path) -> None:
    """A table opened through fsspec must not gain access to plain local paths that it names."""
    lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    read = lance_stream.open_dataset(f"local://{tmp_path}/t")
    assert read.to_table().equals(ROWS)
    for location in (f"{tmp_path}", f"file://{tmp_path}"):
        with pytest.raises(UntrustedLocationError, match="the reader's own disk"):
            read.table.files.store_of(location)


def test_filesystems_do_not_share_their_options(folder: Path) -> None:
    """Options given for one filesystem may be secrets, and a trusted location of another
    protocol must not receive them.
    """
    store = open_store("shelf://t", {"fsspec": {"base": str(folder)}})
    fsspec.register_implementation("rack", Shelf, clobber=True)
    options = {"fsspec": {"base": "secret"}, "trusted_locations": "rack://theirs"}
    try:
        named = trust.open_named(store, "rack://theirs/t", options)
    finally:
        _registry.pop("rack")
    assert isinstance(named, FsspecStore)
    assert named.options == {}


def test_whole_files_have_a_size_limit(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest or index of arbitrary size would exhaust the reader's memory."""
    (folder / "t" / "large").write_bytes(b"x" * 3001)
    monkeypatch.setattr(store_module, "MAX_WHOLE_BYTES", 3001)
    assert len(store.read("large")) == 3001
    monkeypatch.setattr(store_module, "MAX_WHOLE_BYTES", 3000)
    with pytest.raises(CorruptDataError, match="3,001"):
        store.read("large")
