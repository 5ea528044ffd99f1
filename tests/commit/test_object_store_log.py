from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lance_stream.commit import manifest_files
from lance_stream.commit.manifest_files import ManifestCache
from lance_stream.commit.object_store_log import FIRST_NAMES, ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import CorruptDataError
from lance_stream.storage.locations import open_store
from lance_stream.table.paths import NamingScheme, manifest_name, manifest_path
from tests.commit.tables import append, commit_to, create, make_store
from tests.contracts.object_service import ObjectService
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


def test_cached_state_does_not_affect_equality() -> None:
    """A task compares the log that it was sent with its own."""
    store = create(3).store
    fresh, used = ObjectStoreLog(store), ObjectStoreLog(store)
    assert used.latest() == 1
    assert used.scheme is NamingScheme.V2
    assert (used, repr(used)) == (fresh, repr(fresh))
    assert used != ObjectStoreLog(make_store())


def test_new_tables_name_newest_manifests_first() -> None:
    """The inverted numbers of scheme V2 let a short listing find the newest version."""
    log = create(3)
    commit_to(log, append(1, 3))
    names = [name for name in log.store.list_names("_versions") if name.endswith(".manifest")]
    assert names == ["18446744073709551613.manifest", "18446744073709551614.manifest"]


def test_tables_with_v1_names_keep_them() -> None:
    """Other readers expect one scheme per table."""
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


def test_tables_with_both_schemes_are_refused() -> None:
    """The newest version of such a table is ambiguous, and a guess could lose commits."""
    log = create(3)
    log.store.write("_versions/2.manifest", manifest_of(2))
    for look in (log.latest, log.read_latest, log.versions):
        with pytest.raises(CorruptDataError, match="both naming schemes") as caught:
            look()
        assert log.store.uri in caught.value.__notes__[0]


HINT = "_versions/latest_version_hint.json"


def test_hints_are_written_but_not_trusted(tmp_path: Path) -> None:
    """On a local disk the hint may be outdated or damaged."""
    log = create(3, store=open_store(tmp_path / "t"))
    assert log.store.read(HINT) == b'{"version":1}'
    for garbage in (b'{"version":9}', b"", b"\xff", b'{"version":0}'):
        log.store.write(HINT, garbage)
        assert log.latest() == 1
    commit_to(log, append(1, 3))
    assert log.store.read(HINT) == b'{"version":2}'


def test_the_hint_is_overwritten_in_place(tmp_path: Path) -> None:
    """A new file in its place would have to reach the disk before the next flush returns."""
    log = create(3, store=open_store(tmp_path / "t"))
    hint = tmp_path / "t" / HINT
    before = hint.stat().st_ino
    hint.write_bytes(b'{"version":1234567}')
    commit_to(log, append(1, 3))
    assert (hint.stat().st_ino, hint.read_bytes()) == (before, b'{"version":2}')


def test_the_hint_of_copies_stays_unchanged(tmp_path: Path) -> None:
    """A copy can consist of hard links, so its hint can be another table's file."""
    log = create(3, store=open_store(tmp_path / "t"))
    hint, copy = tmp_path / "t" / HINT, tmp_path / "copy"
    for link in (copy.hardlink_to, lambda target: target.rename(copy) and target.symlink_to(copy)):
        link(hint)
        before = hint.read_bytes()
        commit_to(log, append(log.latest(), 3))
        assert copy.read_bytes() == before
        assert hint.read_bytes() == b'{"version":%d}' % log.latest()
        copy.unlink()


def test_ordered_listings_need_no_hint() -> None:
    """Writing a hint costs a request per commit that ordered stores do not need."""
    log = create(3)
    commit_to(log, append(1, 3))
    assert not log.store.exists(HINT)


def test_unordered_services_list_all_names() -> None:
    """Such a service may return the newest version last, and it gets a hint as well."""
    service = ObjectService(is_unordered=True)
    store = replace(service.store(), container="table--usw2-az1--x-s3")
    log = create(3, store=store)
    for version in range(1, 3 * FIRST_NAMES):
        commit_to(log, append(version, 3))
    assert ObjectStoreLog(store).latest() == 3 * FIRST_NAMES
    assert store.read(HINT) == b'{"version":%d}' % (3 * FIRST_NAMES)


def test_failing_hints_fail_no_commits(tmp_path: Path) -> None:
    """The version is already published when the hint is written."""
    refused = []

    def refuse(call: str, path: str) -> None:
        if path == HINT:
            refused.append(path)
            raise OSError("no hints today")

    log = create(3, store=open_store(tmp_path / "t"))
    assert ObjectStoreLog(WatchedStore(log.store, before=refuse)).publish(2, manifest_of(2))
    assert refused


def test_other_files_are_ignored() -> None:
    """Temporary files, detached versions and foreign files lie in the same directory."""
    log = create(3)
    for name in (
        ".18446744073709551613.manifest.0123456789abcdef.tmp",
        "d9223372036854775809.manifest",
        "x",
    ):
        log.store.write(f"_versions/{name}", b"")
    assert log.versions() == [1]


def test_opening_costs_listing_and_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every batch of every stream opens the table."""
    log = create(3)
    for version in range(1, 6):
        commit_to(log, append(version, 3))
    monkeypatch.setattr(manifest_files, "MANIFESTS", ManifestCache())  # another process's
    store = WatchedStore(log.store)
    assert ObjectStoreLog(store).read_latest().version == 6
    assert [call for call, _ in store.calls] == ["list_files", "read"]
    assert ObjectStoreLog(store).read_latest().version == 6
    assert [call for call, _ in store.calls[2:]] == ["list_files", "read_ranges"]


def test_vanished_versions_are_listed_again() -> None:
    """A cleanup may remove the version between the listing and the read."""
    log = create(3)
    commit_to(log, append(1, 3))
    store = WatchedStore(log.store)
    deleted: list[str] = []

    def lose(call: str, path: str) -> None:
        if call.startswith("read") and not deleted:
            deleted.append(path)
            log.store.delete(path)

    store.before = lose
    assert ObjectStoreLog(store).read_latest().version == 1


# --- the first few names

LONG = 3 * FIRST_NAMES


def long_history(scheme: NamingScheme = NamingScheme.V2) -> WatchedStore:
    store = make_store()
    for version in range(1, LONG + 1):
        store.write(manifest_path(version, scheme), manifest_of(version))
    return WatchedStore(store)


def listings(store: WatchedStore) -> list[tuple[str, str]]:
    calls = [call for call in store.calls if call[0].startswith("list")]
    store.calls.clear()
    return calls


FIRST, ALL = ("list_files", "_versions"), ("list_names", "_versions")


def test_the_newest_version_is_listed_first() -> None:
    """Opening a table must not depend on the length of its history."""
    store = long_history()
    log = ObjectStoreLog(store)
    assert log.latest() == LONG
    assert listings(store) == [FIRST]
    look = log.read_state()
    assert (look.newest.version, look.is_all) == (LONG, False)
    assert list(look.etags) == list(range(LONG - FIRST_NAMES + 1, LONG + 1))
    assert listings(store) == [FIRST]


def test_only_the_requested_versions_are_listed() -> None:
    """A stream asks for the newest few versions of a table with a long history."""
    store = long_history()
    log = ObjectStoreLog(store)
    assert log.versions(after=LONG - 2) == [LONG - 1, LONG]
    assert listings(store) == [FIRST]
    assert log.versions(after=LONG - FIRST_NAMES - 5) == list(
        range(LONG - FIRST_NAMES - 4, LONG + 1)
    )
    assert listings(store) == [FIRST]
    another = ObjectStoreLog(store)
    assert another.versions(after=LONG - FIRST_NAMES - 5)[0] == LONG - FIRST_NAMES - 4
    assert listings(store) == [FIRST, FIRST]
    assert log.versions() == list(range(1, LONG + 1))
    assert listings(store) == [ALL]
    assert log.versions(after=LONG + 7) == []


def test_versions_beyond_gaps_are_found() -> None:
    """Cleanup leaves tagged versions, so the first gap is not the end of the history."""
    store = long_history()
    for version in range(5, LONG - 1):
        store.delete(manifest_path(version))
    log = ObjectStoreLog(store)
    assert log.versions(after=3) == [4, LONG - 1, LONG]
    assert log.versions(after=8) == [LONG - 1, LONG]


@pytest.mark.parametrize(
    "other",
    [
        lambda number: f"_versions/{manifest_name(LONG + 1)}-{number:032x}",  # staged
        lambda number: f"_versions/.{number}.tmp",
        lambda number: f"_versions/000{number}.txt",
        lambda number: f"_versions/d{(1 << 63) + number}.manifest",  # detached
        lambda number: f"_versions/{number:020}.manifest",  # detached, by a number of scheme V2
    ],
)
def test_other_files_hide_no_newest_version(other: Callable[[int], str]) -> None:
    """Many foreign names may sort before the newest manifest and fill the first page of the
    listing.
    """
    store = long_history()
    for number in range(2 * FIRST_NAMES):
        store.write(other(number), b"")
    log = ObjectStoreLog(store)
    assert log.latest() == LONG
    assert log.read_state().newest.version == LONG
    assert log.versions(after=LONG - 1) == [LONG]
    assert log.publish(LONG + 1, manifest_of(LONG + 1))
    assert ObjectStoreLog(store).latest() == LONG + 1


def test_v1_names_are_listed_completely() -> None:
    """Names of scheme V1 sort as text, so only the whole listing reveals the newest version."""
    store = long_history(NamingScheme.V1)
    log = ObjectStoreLog(store)
    assert log.latest() == LONG
    assert listings(store) == [FIRST, ALL]
    look = log.read_state()
    assert (look.newest.version, look.is_all, len(look.etags)) == (LONG, True, LONG)
    assert log.publish(LONG + 1, manifest_of(LONG + 1))
    assert store.exists(manifest_path(LONG + 1, NamingScheme.V1))


@pytest.mark.parametrize("version", [1, 17])
def test_mixed_naming_schemes_are_refused(version: int) -> None:
    """A short listing must notice the other scheme as reliably as a long one."""
    store = long_history()
    store.write(manifest_path(version, NamingScheme.V1), manifest_of(version))
    with pytest.raises(CorruptDataError, match="both naming schemes"):
        ObjectStoreLog(store).latest()


def test_finding_versions_costs_one_request() -> None:
    """A continuous stream polls for the next version all day."""
    store = long_history()
    log = ObjectStoreLog(store)
    log.read_state()
    store.calls.clear()
    assert log.find(LONG + 1) is None
    assert len(store.calls) == 1
    log.publish(LONG + 1, manifest_of(LONG + 1))
    store.calls.clear()
    manifest = log.find(LONG + 1)
    assert manifest is not None
    assert manifest.version == LONG + 1
    assert len(store.calls) == 1


@pytest.mark.parametrize("number", [0, 1, FIRST_NAMES - 1])
def test_other_files_leave_listings_incomplete(number: int) -> None:
    """A listing with few versions is not the whole history if other names have filled it."""
    store = long_history()
    for other in range(number):
        store.write(f"_versions/.{other}.tmp", b"")
    state = ObjectStoreLog(store).read_state()
    assert (state.newest.version, len(state.etags)) == (LONG, FIRST_NAMES - number)
    assert not state.is_all


def test_only_staged_manifests_are_obsolete() -> None:
    """Other files beside them belong to somebody else."""
    log = ObjectStoreLog(long_history())
    staged = [f"_versions/{manifest_name(version)}-{7:032x}" for version in (LONG, LONG + 1)]
    assert log.obsolete_staged_files([*staged, "_versions/x.tmp"]) == {staged[0]}
