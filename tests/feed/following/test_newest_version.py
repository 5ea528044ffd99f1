"""Polling for new versions."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.opening import open_log
from lance_stream.errors import NotFoundError
from lance_stream.feed.following.newest_version import POLLS_PER_LISTING, NewestVersion
from lance_stream.storage.locations import open_store
from lance_stream.table.paths import NamingScheme, manifest_path
from tests.contracts.watched_stores import WatchedStore

ROW = pa.table({"id": [1]})


def watched(uri: str) -> WatchedStore:
    return WatchedStore(open_store(uri))


def test_an_idle_poll_is_one_read(tmp_path: Path) -> None:
    """Probing for the next version costs one request, where a listing of a long history costs
    many.
    """
    table = lance_stream.create_dataset(str(tmp_path), ROW.schema).append(ROW)
    store = watched(table.uri)
    newest = NewestVersion(ObjectStoreLog(store))
    assert newest.poll() == 2
    store.calls.clear()
    for _ in range(POLLS_PER_LISTING):
        assert newest.poll() == 2
    assert {call for call, _ in store.calls} == {"read"}
    assert len(store.calls) == POLLS_PER_LISTING


def test_new_versions_are_seen_at_once(tmp_path: Path) -> None:
    """Several versions may be committed between two polls."""
    table = lance_stream.create_dataset(str(tmp_path), ROW.schema)
    newest = NewestVersion(open_log(table.uri))
    assert newest.poll() == 1
    table.append(ROW).append(ROW)
    assert newest.poll() == 3


def test_versions_after_gaps_are_seen(tmp_path: Path) -> None:
    """The next version was cleaned up before it was seen."""
    table = lance_stream.create_dataset(str(tmp_path), ROW.schema)
    newest = NewestVersion(open_log(table.uri))
    assert newest.poll() == 1
    table.append(ROW).append(ROW)
    (tmp_path / manifest_path(2, NamingScheme.V2)).unlink()
    polls = [newest.poll() for _ in range(POLLS_PER_LISTING + 1)]
    assert polls[-1] == 3


def test_deleted_and_recreated_tables_are_noticed(tmp_path: Path) -> None:
    """A new table can have the same newest version, so a listing now and then compares the
    marks.
    """
    table = lance_stream.create_dataset(str(tmp_path / "t"), ROW.schema).append(ROW)
    newest = NewestVersion(open_log(table.uri))
    newest.poll()
    before = newest.mark
    shutil.rmtree(tmp_path / "t")
    lance_stream.create_dataset(str(tmp_path / "t"), ROW.schema).append(ROW)
    for _ in range(POLLS_PER_LISTING + 1):
        newest.poll()
    assert (newest.version, newest.mark != before) == (2, True)
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(NotFoundError, match="no dataset"):
        newest.list()
