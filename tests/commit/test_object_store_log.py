from pathlib import Path

import pytest

from lance_stream.commit import manifest_files
from lance_stream.commit.manifest_memory import ManifestMemory
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import CorruptDataError
from lance_stream.storage.locations import open_store
from tests.commit.tables import append, commit_to, create, make_store
from tests.contracts.version_logs import VersionLogContract, manifest_of
from tests.contracts.watched_stores import WatchedStore


class TestObjectStoreLogOnDisk(VersionLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> VersionLog:
        return ObjectStoreLog(open_store(tmp_path / "t"))


class TestObjectStoreLogInMemory(VersionLogContract):
    @pytest.fixture
    def log(self) -> VersionLog:
        return ObjectStoreLog(make_store())


def test_a_new_table_names_its_manifests_so_that_the_newest_sorts_first() -> None:
    log = create(3)
    commit_to(log, append(1, 3))
    names = [each for each in log.store.list_names("_versions") if each.endswith(".manifest")]
    assert names == ["18446744073709551613.manifest", "18446744073709551614.manifest"]


def test_a_table_of_the_old_scheme_goes_on_with_it() -> None:
    log = create(3)
    data = log.store.read("_versions/18446744073709551614.manifest")
    log.store.delete("_versions/18446744073709551614.manifest")
    log.store.write("_versions/1.manifest", data)
    for version in range(1, 11):
        commit_to(log, append(version, 3))
    assert log.versions() == list(range(1, 12))
    assert "11.manifest" in log.store.list_names("_versions")
    assert ObjectStoreLog(log.store).publish(12, manifest_of(12))
    assert "12.manifest" in log.store.list_names("_versions")


def test_a_table_with_names_of_both_schemes_is_refused() -> None:
    log = create(3)
    log.store.write("_versions/2.manifest", manifest_of(2))
    for look in (log.latest, log.read_latest, log.versions):
        with pytest.raises(CorruptDataError, match="both naming schemes") as caught:
            look()
        assert log.store.uri in caught.value.__notes__[0]


def test_the_hint_is_written_and_never_believed() -> None:
    log = create(3)
    assert log.store.read("_versions/latest_version_hint.json") == b'{"version":1}'
    for garbage in (b'{"version":9}', b"", b"\xff", b'{"version":0}'):
        log.store.write("_versions/latest_version_hint.json", garbage)
        assert log.latest() == 1
    commit_to(log, append(1, 3))
    assert log.store.read("_versions/latest_version_hint.json") == b'{"version":2}'


def test_a_hint_that_cannot_be_written_does_not_make_the_commit_fail() -> None:
    def refuse(call: str, path: str) -> None:
        if path.endswith("hint.json"):
            raise OSError("no hints today")

    log = ObjectStoreLog(WatchedStore(create(3).store, before=refuse))
    assert log.publish(2, manifest_of(2))


def test_files_that_are_no_manifests_of_versions_are_looked_over() -> None:
    log = create(3)
    for name in (
        ".18446744073709551613.manifest.0123456789abcdef.tmp",
        "d9223372036854775809.manifest",
        "x",
    ):
        log.store.write(f"_versions/{name}", b"")
    assert log.versions() == [1]


def test_opening_the_newest_version_costs_one_listing_and_one_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = create(3)
    for version in range(1, 6):
        commit_to(log, append(version, 3))
    monkeypatch.setattr(manifest_files, "MANIFESTS", ManifestMemory())  # another process's
    store = WatchedStore(log.store)
    assert ObjectStoreLog(store).read_latest().version == 6
    assert [call for call, _ in store.calls] == ["list_names", "read"]
    assert ObjectStoreLog(store).read_latest().version == 6
    assert [call for call, _ in store.calls[2:]] == ["list_names", "read_ranges"]


def test_a_version_that_goes_away_after_the_listing_is_listed_again() -> None:
    log = create(3)
    commit_to(log, append(1, 3))
    store = WatchedStore(log.store)
    gone: list[str] = []

    def lose(call: str, path: str) -> None:
        if call.startswith("read") and not gone:
            gone.append(path)
            log.store.delete(path)

    store.before = lose
    assert ObjectStoreLog(store).read_latest().version == 1
