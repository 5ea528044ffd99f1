"""What lies on a disk under the names of a table's files, and what the disk itself says."""

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli.main import main
from lance_stream.environment import MACHINE
from lance_stream.errors import (
    CommitUncertainError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    StoreRefusedError,
    UnsupportedFeatureError,
)
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.maintenance.consumers import drop_consumer, record_progress
from lance_stream.snapshot import store_clock
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.storage import create_once, local_store
from lance_stream.storage.local_store import LocalStore

ROWS = pa.table({"id": [1, 2, 3]})
DAY_NANOS = 24 * 3600 * 10**9


def make_table(folder: Path) -> lance_stream.Dataset:
    return lance_stream.create_dataset(folder, ROWS.schema).append(ROWS)


def test_reads_do_not_block_on_pipes(tmp_path: Path) -> None:
    """Opening a pipe for reading waits until somebody writes into it, possibly forever."""
    ds = make_table(tmp_path / "t")
    os.mkfifo(tmp_path / "t" / "pipe")
    store = ds.table.store
    for read in (
        lambda: store.read("pipe"),
        lambda: store.size("pipe"),
        lambda: store.read_end("pipe", 8),
        lambda: store.copy("pipe", "copy"),
    ):
        is_done = threading.Event()
        thread = threading.Thread(target=_refused, args=(read, is_done), daemon=True)
        thread.start()
        assert is_done.wait(10), "a pipe is waited for"
    assert not store.exists("pipe")


def _refused(read: Any, done: threading.Event) -> None:
    with pytest.raises(NotFoundError):
        read()
    done.set()


def test_pipes_and_links_are_refused(tmp_path: Path) -> None:
    """A pipe, a folder or a link may take the place of a data file and would block or redirect a
    reader.
    """
    ds = make_table(tmp_path / "t")
    (data_file,) = (tmp_path / "t" / "data").iterdir()
    data_file.unlink()
    for make in (os.mkfifo, Path.mkdir):
        make(data_file)
        with pytest.raises(NotFoundError):
            lance_stream.open_dataset(ds.uri).to_table()
        assert any(
            finding.rule == "data files" for finding in lance_stream.open_dataset(ds.uri).verify()
        )
        data_file.rename(tmp_path / make.__name__)
    data_file.symlink_to(data_file)
    with pytest.raises(StoreRefusedError, match="Links form a cycle"):
        lance_stream.open_dataset(ds.uri).to_table()


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE]
)
@pytest.mark.parametrize("call", ["write", "fsync", "open", "link"])
def test_refusals_of_the_disk_are_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """Nothing was created, so the commit is not uncertain and others can take the version."""
    ds = make_table(tmp_path / "t")
    real_call = getattr(os, call)

    def refuse(*words: Any, **named: Any) -> Any:
        is_manifest = any("_versions" in str(word) for word in words)
        is_written = call in ("write", "fsync") and "_versions" in str(
            Path(f"/proc/self/fd/{words[0]}").readlink()
        )
        if is_written or (is_manifest and (call != "open" or words[1] & os.O_CREAT)):
            raise OSError(number, os.strerror(number))
        return real_call(*words, **named)

    with monkeypatch.context() as patched:
        patched.setattr(create_once.os, call, refuse)
        with pytest.raises(StoreRefusedError, match=os.strerror(number)):
            ds.append(ROWS)
    assert lance_stream.open_dataset(ds.uri).version == 2
    assert ds.append(ROWS).count_rows() == 6


def test_failing_disks_leave_commits_unclear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input or output error does not tell whether the link was made, so it is neither a refusal
    nor a success.
    """
    ds = make_table(tmp_path / "t")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = LocalStore(str(tmp_path / "t"))
    with monkeypatch.context() as patched:
        patched.setattr(create_once.os, "link", fail)
        with pytest.raises(StoreError, match="Input/output error") as caught:
            store.create_once("x", b"x")
    assert not isinstance(caught.value, StoreRefusedError | CommitUncertainError)
    assert ds.count_rows() == 3


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EFBIG, "ulimit -f"), (errno.EMFILE, "ulimit -n"), (errno.ENFILE, "ulimit -n")],
)
def test_limits_of_processes_state_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """A disk with free space would otherwise be searched for a fault, or replaced."""
    ds = make_table(tmp_path / "t")

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(local_store.os, "write", refuse)
        with pytest.raises(StoreRefusedError, match=remedy):
            ds.append(ROWS)
    assert ds.append(ROWS).count_rows() == 6


@pytest.mark.parametrize("failing", ["write", "replace"])
def test_failing_disks_raise_store_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A disk that fails to write a file often fails to delete it, too, and the second error would
    hide the first one, and its remedy.
    """

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    ds = make_table(tmp_path / "t")
    with monkeypatch.context() as patched:
        for call in (failing, "unlink"):
            patched.setattr(local_store.os, call, fail)
        with pytest.raises(StoreError, match=r"Input/output error\. See the system's log"):
            ds.append(ROWS)
    assert lance_stream.open_dataset(ds.uri).append(ROWS).count_rows() == 6


def test_overlong_names_are_reported(tmp_path: Path) -> None:
    """The operating system's error about a long name would reach the user as an OSError."""
    ds = make_table(tmp_path / "t")
    for use in (
        lambda: ds.tags.create("x" * 400, 1),
        lambda: lance_stream.open_dataset(ds.uri, "x" * 400),
        lambda: lance_stream.open_dataset(ds.uri, ("x" * 400, None)),
        lambda: lance_stream.open_dataset(tmp_path / ("x" * 400)),
        lambda: make_table(tmp_path / ("x" * 400)),
    ):
        with pytest.raises((InvalidInputError, NotFoundError)):
            use()


def test_parents_of_new_folders_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a flushed file is lost if the entry of its folder was not flushed."""
    flushed: list[Path] = []
    monkeypatch.setattr(local_store, "flush_names", flushed.append)
    LocalStore(str(tmp_path / "a" / "t"), durable=True).write("data/x/y", b"1")
    assert flushed == [
        tmp_path,
        tmp_path / "a",
        tmp_path / "a" / "t",
        tmp_path / "a" / "t" / "data",
        tmp_path / "a" / "t" / "data" / "x",
    ]
    flushed.clear()
    LocalStore(str(tmp_path / "b")).write("data/y", b"1")
    assert flushed == []
    LocalStore(str(tmp_path / "c")).create_once("_versions/1", b"1")
    assert flushed == [tmp_path, tmp_path / "c"]


@pytest.mark.parametrize("folder", ["_versions", "_refs/tags", "_deletions"])
def test_huge_sparse_files_are_not_read(tmp_path: Path, folder: str) -> None:
    """A file of any size takes no disk space if it is one hole, but reading it would exhaust the
    memory.
    """
    root = tmp_path / "t"
    ds = lance_stream.create_dataset(root, ROWS.schema).append(ROWS).delete("id = 1")
    ds.tags.create("gold", 1)
    for path in (root / folder).iterdir():
        os.truncate(path, 1 << 40)
    clear_deleted_offsets()  # the process knows them: it has written them
    verbs: dict[str, Callable[[], object]] = {
        "_versions": lambda: lance_stream.open_dataset(root),
        "_refs/tags": lambda: ds.cleanup(older_than="0s"),
        "_deletions": lambda: lance_stream.open_dataset(root).to_table(),
    }
    with pytest.raises(CorruptDataError, match=r"1,099,511,627,776 bytes"):
        verbs[folder]()


def test_cleanup_spares_files_behind_links(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The linked folder may hold another table's files, which no version of this one names."""
    theirs = make_table(tmp_path / "theirs")
    ours = make_table(tmp_path / "ours").delete("id = 1")
    data = tmp_path / "ours" / "data"
    for path in data.iterdir():
        path.rename(tmp_path / "theirs" / "data" / path.name)
    data.rmdir()
    data.symlink_to(tmp_path / "theirs" / "data")
    before = {path.name for path in data.iterdir()}
    with caplog.at_level(logging.WARNING):
        ours.cleanup(older_than="0s", delete_unverified=True)
    assert "is a link, and may lead to another table" in caplog.text
    assert {path.name for path in data.iterdir()} == before
    assert theirs.to_table().num_rows == 3
    assert lance_stream.open_dataset(ours.uri).to_table().num_rows == 2


@pytest.mark.parametrize("folder", ["_versions", "_refs"])
def test_cleanup_refuses_versions_behind_a_link(tmp_path: Path, folder: str) -> None:
    """Versions or tags of another table would decide which files of this one are deleted."""
    ds = make_table(tmp_path / "t")
    ds.tags.create("x", 1)
    (tmp_path / "t" / folder).rename(tmp_path / "elsewhere")
    (tmp_path / "t" / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsupportedFeatureError, match="is a link"):
        ds.cleanup(older_than="0s")
    assert len(list((tmp_path / "elsewhere").rglob("*"))) >= 1


@pytest.mark.parametrize("link", ["tree/dev", "tree", "_refs"])
def test_linked_branches_are_never_deleted(tmp_path: Path, link: str) -> None:
    """Deleting a branch removes its folder, which a link could lead to another table."""
    ours, theirs = (make_table(tmp_path / name) for name in ("ours", "theirs"))
    for value in (ours, theirs):
        value.branches.create("dev")
    branch = lance_stream.open_dataset(theirs.uri, branch="dev").append(ROWS)
    branch.tags.create("kept", branch.version)
    branch.overwrite(ROWS)
    shutil.rmtree(tmp_path / "ours" / link)
    (tmp_path / "ours" / link).symlink_to(tmp_path / "theirs" / link)
    before = sorted((tmp_path / "theirs").rglob("*"))
    with pytest.raises(UnsupportedFeatureError, match="may belong to another table"):
        ours.branches.delete("dev")
    with pytest.raises(UnsupportedFeatureError, match="may belong to another table"):
        lance_stream.open_dataset(ours.uri, branch="dev").cleanup(
            older_than="0s", delete_unverified=True
        )
    assert sorted((tmp_path / "theirs").rglob("*")) == before


def test_linked_tags_are_never_deleted(tmp_path: Path) -> None:
    """Without its tag the other table's version would be removed by the next cleanup."""
    ours, theirs = (make_table(tmp_path / name) for name in ("ours", "theirs"))
    theirs.tags.create("kept", 1)
    (tmp_path / "ours" / "_refs").symlink_to(tmp_path / "theirs" / "_refs")
    for delete in (lambda: ours.tags.delete("kept"), lambda: drop_consumer(ours.table.refs, "c")):
        with pytest.raises(UnsupportedFeatureError, match="may belong to another table"):
            delete()
    assert list(theirs.tags.list()) == ["kept"]


def test_linked_tables_receive_no_versions(tmp_path: Path) -> None:
    """A version of this table among those of another one would make the other unreadable."""
    ours, theirs = (make_table(tmp_path / name) for name in ("ours", "theirs"))
    theirs.tags.create("gold", 1)
    shutil.rmtree(tmp_path / "ours" / "_versions")
    (tmp_path / "ours" / "_refs").symlink_to(tmp_path / "theirs" / "_refs")
    (tmp_path / "ours" / "_versions").symlink_to(tmp_path / "theirs" / "_versions")
    ours = lance_stream.open_dataset(ours.uri)
    before = sorted((tmp_path / "theirs").rglob("*"))
    verbs: tuple[Callable[[], object], ...] = (
        lambda: ours.append(ROWS),
        lambda: ours.update_config({"a": "b"}),
        lambda: ours.tags.create("x", 1),
        lambda: ours.tags.update("gold", 1),
        lambda: ours.branches.create("dev"),
        lambda: record_progress(ours.table.refs, "consumer", 1),
    )
    for verb in verbs:
        with pytest.raises(UnsupportedFeatureError, match="could become part of another table"):
            verb()
    assert sorted((tmp_path / "theirs").rglob("*")) == before
    assert theirs.checkout(None).version == theirs.version


def test_data_may_be_on_another_disk(tmp_path: Path) -> None:
    """Administrators move large data folders to another disk by a link, which must keep working."""
    ds = make_table(tmp_path / "t")
    (tmp_path / "t" / "data").rename(tmp_path / "disk")
    (tmp_path / "t" / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "t")
    ds = lance_stream.open_dataset(tmp_path / "link").append(ROWS).delete("id = 1").compact()
    ds.tags.create("x")
    assert (ds.count_rows(), ds.verify()) == (4, [])


def test_tables_linked_as_branches_survive_deletion(tmp_path: Path) -> None:
    """The link makes a whole table look like a branch of this one."""
    ours, theirs = (make_table(tmp_path / name) for name in ("ours", "theirs"))
    ours.branches.create("dev")
    shutil.rmtree(tmp_path / "ours" / "tree" / "dev")
    (tmp_path / "ours" / "tree" / "dev").symlink_to(tmp_path / "theirs")
    with pytest.raises(UnsupportedFeatureError, match="may belong to another table"):
        ours.branches.delete("dev")
    assert theirs.to_table() == ROWS


def test_linked_manifests_are_not_renamed(tmp_path: Path) -> None:
    """Renaming would change the naming scheme of another table."""
    ds = make_table(tmp_path / "t")
    for number, path in enumerate(sorted((tmp_path / "t" / "_versions").glob("*.manifest"))):
        path.rename(path.with_name(f"{2 - number}.manifest"))
    (tmp_path / "t" / "_versions").rename(tmp_path / "elsewhere")
    (tmp_path / "t" / "_versions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsupportedFeatureError, match="is a link"):
        lance_stream.migrate_manifest_paths(ds.uri)
    assert len(list((tmp_path / "elsewhere").glob("?.manifest"))) == 2


def test_linked_tables_are_cleaned_up(tmp_path: Path) -> None:
    """A link to the whole table is harmless and must not disable maintenance."""
    make_table(tmp_path / "t").delete("id = 1").compact()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    report = lance_stream.open_dataset(tmp_path / "link").cleanup(older_than="0s")
    assert len(report.versions) == 3
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1


def test_full_disks_can_be_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleanup is how a table's owner frees space, so it must not need any."""
    ds = make_table(tmp_path / "t").overwrite(ROWS)

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(local_store.os, "write", refuse)
        assert len(ds.cleanup(older_than="0s").versions) == 2
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1
    assert ds.append(ROWS).count_rows() == 6


def test_fast_clocks_delete_no_unfinished_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine whose clock is days ahead would take every file of a running
    writer for abandoned.
    """
    ds = make_table(tmp_path / "t")
    (tmp_path / "t" / "data" / "unfinished.lance").write_bytes(b"of a writer at work")
    real_now = MACHINE.now_nanos
    ahead = replace(MACHINE, now_nanos=lambda: real_now() + 8 * DAY_NANOS)
    monkeypatch.setattr(store_clock, "_machine_nanos", ahead.now_nanos)
    rules = CleanupRules(older_than=timedelta(days=7))
    with caplog.at_level(logging.WARNING):
        report = cleanup(ds.table, rules, environment=ahead)
    assert not report.versions
    assert (tmp_path / "t" / "data" / "unfinished.lance").exists()
    assert "691200 s ahead" in caplog.text
    assert not list((tmp_path / "t").rglob("*.tmp"))


def test_fast_clocks_expire_no_tombstones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones that expire too early let late rows resurrect deleted ones."""
    schema = pa.schema([("id", pa.int64()), ("seq", pa.int64())])

    def rows(*values: tuple[int, int, str]) -> pa.Table:
        names = ("id", "seq", "op")
        return pa.Table.from_pylist([dict(zip(names, value, strict=True)) for value in values])

    def upsert(ds: lance_stream.Dataset, data: pa.Table) -> lance_stream.Dataset:
        return ds.upsert(data, "id", "seq", "op = 'd'", except_columns="op", tombstones="7 days")

    ds = lance_stream.create_dataset(tmp_path / "t", schema, primary_key=["id"])
    ds = upsert(ds, rows((1, 1, "u"), (2, 1, "u")))
    ds = upsert(ds, rows((1, 5, "d")))
    real_now = MACHINE.now_nanos
    monkeypatch.setattr(store_clock, "_machine_nanos", lambda: real_now() + 8 * DAY_NANOS)
    store_clock._ahead.clear()
    object.__setattr__(MACHINE, "now_nanos", lambda: real_now() + 8 * DAY_NANOS)
    try:
        for late in (3, 4):
            ds = upsert(ds, rows((1, late, "u"), (3, late, "d")))
            assert ds.to_table()["id"].to_pylist() == [2]
    finally:
        object.__setattr__(MACHINE, "now_nanos", real_now)


@pytest.mark.parametrize("keeps_history", [False, True])
def test_slow_clocks_expire_no_tombstones(
    keeps_history: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete that is stamped too early has expired for machines whose clocks are right."""
    schema = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("op", pa.string())])
    apply = Dataset.apply_scd2 if keeps_history else Dataset.apply_scd1

    def change(seq: int, op: str) -> Dataset:
        row = pa.Table.from_pylist([{"id": 1, "seq": seq, "op": op}], schema=schema)
        newest = lance_stream.open_dataset(tmp_path / "t")
        return apply(newest, row, "id", "seq", apply_as_deletes="op = 'd'", tombstones="7 days")

    columns = lance_stream.history_schema(schema, pa.int64()) if keeps_history else schema
    lance_stream.create_dataset(tmp_path / "t", columns)
    real_now = MACHINE.now_nanos
    monkeypatch.setattr(store_clock, "_machine_nanos", lambda: real_now() - 8 * DAY_NANOS)
    object.__setattr__(MACHINE, "now_nanos", lambda: real_now() - 8 * DAY_NANOS)
    try:
        change(5, "d")
    finally:
        object.__setattr__(MACHINE, "now_nanos", real_now)
    monkeypatch.setattr(store_clock, "_machine_nanos", real_now)
    store_clock._ahead.clear()
    rows = change(3, "u").to_table().to_pylist()
    assert [row.get("__END_AT") for row in rows] == ([5] if keeps_history else [])


@pytest.mark.parametrize("words", [["show"], ["show", "--json"], ["log"], ["verify"]])
def test_no_terminal_control_sequences_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Names in a table can contain escape sequences that control the reader's terminal."""
    evil = "a\x1b]0;owned\x07\x9b2J\u202eb\x7f"
    rows = pa.table({evil: [1]}, schema=pa.schema([pa.field(evil, pa.int64())]))
    ds = lance_stream.create_dataset(tmp_path / "t", rows.schema, config={evil: evil})
    ds.append(rows)
    assert main([*words, str(tmp_path / "t")]) == 0
    assert main([*words, str(tmp_path / f"t{evil}")]) == 3
    printed = capsys.readouterr()
    assert all(value.isprintable() or value == "\n" for value in printed.out + printed.err)
    if "--json" in words:
        assert evil in json.dumps(json.loads(printed.out), ensure_ascii=False).replace(
            "\\u001b", "\x1b"
        ).replace("\\u0007", "\x07")
