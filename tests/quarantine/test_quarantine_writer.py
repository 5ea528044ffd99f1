"""Files of bad rows whose quarantine, or whose ledger entry, is not what it was."""

import shutil
from pathlib import Path
from typing import Any

import lance
import pytest

import lance_stream
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.quarantine import quarantine_writer
from lance_stream.quarantine import replay as replaying
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.snapshot.table_version import TableVersion
from tests.quarantine.test_replay import COLUMNS, Killed, bad, rows_of, states_of, take_in


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    lance_stream.create_dataset(uri, COLUMNS)
    return uri


def test_deleted_quarantines_are_created_again(uri: str) -> None:
    """The ledger still names a file of rows that only the deleted quarantine had."""
    take_in(uri, 0, bad(1))
    shutil.rmtree(quarantine_uri(uri))
    take_in(uri, 1, [{"id": 5, "x": 5}])
    assert lance_stream.list_quarantine(uri) == []
    take_in(uri, 2, bad(2))
    assert states_of(uri) == [(302, "ready")]


def test_overtaken_drivers_make_no_row_stale(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow driver begins batch 1, which another one has committed, that one goes on with
    batch 2, so that the file that the ledger names no longer exists.
    """
    take_in(uri, 0, bad(1))
    slow = lance_stream.open_dataset(uri).table
    take_in(uri, 1, bad(2))
    newest = quarantine_writer.newest_version_of

    def overtaken(table: TableVersion) -> TableVersion:
        monkeypatch.undo()
        take_in(uri, 2, bad(3))
        return newest(table)

    monkeypatch.setattr(quarantine_writer, "newest_version_of", overtaken)
    QuarantineBatch(quarantine_uri(uri), {}, MicroBatch("app", 1)).begin(slow)
    assert states_of(uri) == [(301, "ready"), (302, "ready"), (303, "ready")]


def test_restored_tables_get_claimed_rows_again(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay dies after its commit, which another program's restore then removes together with
    the ledger entry.
    """
    take_in(uri, 0, [{"id": 1, "x": 300}])
    version = lance_stream.open_dataset(uri).version

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(replaying, "delete_claimed", die)
        with pytest.raises(Killed):
            lance_stream.replay_quarantine(uri, fix={"x": "1"})
    assert rows_of(uri) == [(1, 1)]
    rival = lance.dataset(uri)
    rival.checkout_version(version).restore()
    assert rows_of(uri) == []
    for rows_replayed in (1, 0):
        assert lance_stream.replay_quarantine(uri, fix={"x": "2"}).rows_replayed == rows_replayed
        assert rows_of(uri) == [(1, 2)]
    assert states_of(uri) == []


@pytest.mark.parametrize("options", [None, {}, {"allow_http": "true"}])
def test_replays_publish_with_their_options(
    uri: str, options: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quarantine is in the same store as its table."""
    take_in(uri, 0, bad(1), dies="committed")
    passed: list[Any] = []

    def publish(location: str, storage_options: Any, table: TableVersion, app_id: str) -> bool:
        passed.append(storage_options)
        return quarantine_writer.publish(location, {}, table, app_id)

    monkeypatch.setattr(replaying, "publish", publish)
    fix = {"x": "1"}
    replayed = lance_stream.replay_quarantine(uri, storage_options=options, fix=fix)
    assert replayed.rows_replayed == 1
    assert passed == [options or {}]
