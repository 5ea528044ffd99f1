"""The log over an external manifest store: a commit's steps, and what a crash at each leaves."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lance_stream.commit.external_log import ExternalLog, base_uri_of
from lance_stream.commit.manifest_stores.protocol import ManifestItem
from lance_stream.commit.manifest_stores.sqlite import SqliteManifests
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.environment import MACHINE
from lance_stream.errors import (
    CommitUncertainError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from lance_stream.table.config.manifest_store_mark import CONFIG_KEY
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.rows import Append
from lance_stream.table.operations.transaction import encode_transaction
from lance_stream.table.operations.versions import Restore
from lance_stream.table.paths import manifest_path
from tests.commit.tables import (
    CREATION,
    append,
    commit_to,
    configure,
    create,
    live_ids,
    make_store,
    overwrite,
    transaction,
)
from tests.contracts.version_logs import VersionLogContract, manifest_of
from tests.contracts.watched_stores import WatchedManifests, WatchedStore


class WithoutCreateOnce(WatchedStore):
    """A store that cannot create a name once, such as a mount without hard links."""

    def create_once(self, path: str, data: Any, **_: Any) -> bool:  # noqa: ARG002  # it does nothing
        raise UnsupportedFeatureError("this store cannot create a file once; nothing was written")


class ExternalLogContract(VersionLogContract):
    def delete_table(self, log: VersionLog) -> None:
        super().delete_table(log)
        assert isinstance(log, ExternalLog)
        log.forget()


class TestExternalLogInMemory(ExternalLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> VersionLog:
        return new_log(tmp_path)


class TestExternalLogOnDisk(ExternalLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> VersionLog:
        return new_log(tmp_path, open_store(tmp_path / "t"))


class TestExternalLogOverAStoreThatCannotCreateOnce(ExternalLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> VersionLog:
        return new_log(tmp_path, WithoutCreateOnce(open_store(tmp_path / "t")))

    def test_published_versions_are_visible_at_once(self, log: VersionLog) -> None:
        """The next version must be published through another log object, as
        from another process.
        """
        other = new_log(Path(log.store.inner.root).parent, log.store)  # type: ignore[attr-defined]  # the watched one's
        self.publish(log, 1)
        assert other.latest() == 1
        assert other.publish(2, manifest_of(2))
        assert log.latest() == 2
        assert not log.publish(2, manifest_of(2))

    def test_later_versions_appear_once_published(self, log: VersionLog) -> None:
        """A stream polls for the next version, which must not be hidden by a cached answer."""
        self.publish(log, 1)
        assert log.find(2) is None
        self.publish(log, 2)
        assert log.find(2) is not None


def new_log(folder: Path, store: Store | None = None) -> ExternalLog:
    return ExternalLog(store or make_store(), SqliteManifests(str(folder / "m.db")), "uri of t")


# --- a table, and its stores as they are seen by one writer


@dataclass
class Writer:
    """A log whose calls are watched, over stores that others reach by themselves."""

    store: WatchedStore
    manifests: WatchedManifests
    log: ExternalLog

    def others(self) -> ExternalLog:
        return ExternalLog(self.store.inner, self.manifests.inner, self.log.base_uri)


@pytest.fixture(params=["creates once", "cannot create once"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    """A writer to a table of 3 versions with one row each."""
    inner: Store = open_store(tmp_path / "t")
    if request.param == "cannot create once":
        inner = WithoutCreateOnce(inner)
    store, manifests = WatchedStore(inner), WatchedManifests(new_log(tmp_path).manifests)
    log = ExternalLog(store, manifests, "uri of t")
    commit_to(log, overwrite(0, 1), creation=CREATION)
    commit_to(log, append(1, 1))
    commit_to(log, append(2, 1))
    store.calls.clear()
    manifests.calls.clear()
    return Writer(store, manifests, log)


def names(store: Store) -> list[str]:
    return [name for name in store.list_names("_versions") if "manifest" in name]


def staged(store: Store) -> list[str]:
    return [name for name in names(store) if not name.endswith(".manifest")]


FINAL_3 = "_versions/18446744073709551612.manifest"
FINAL_4 = "_versions/18446744073709551611.manifest"


class Killed(BaseException):
    """The process is gone."""


def kill_at(writer: Writer, step: int) -> None:
    """Let the writer die when it is about to take a step, from 1 to 5; 6 is after the last."""

    def in_store(call: str, path: str) -> None:
        is_staged = ".manifest-" in path
        at = {
            ("write", True): 1,
            ("create_once", False): 3,
            ("write", False): 3,
            ("delete", True): 5,
        }.get((call, is_staged))
        if path.startswith("_versions/") and at == step:
            raise Killed

    def in_manifests(call: str, _version: int) -> None:
        if {"put_if_not_exists": 2, "put_if_exists": 4}.get(call) == step:
            raise Killed

    writer.store.before = in_store
    writer.manifests.before = in_manifests


def revive(writer: Writer) -> None:
    writer.store.before = writer.store.after = lambda _call, _path: None
    writer.manifests.before = writer.manifests.after = lambda _call, _version: None


def test_commits_leave_nothing_staged(writer: Writer) -> None:
    """Each leftover would be a copy of the manifest, and the item must name the final file."""
    assert writer.log.publish(4, manifest_of(4))
    assert staged(writer.store) == []
    item = writer.manifests.inner.latest("uri of t")
    assert item is not None
    assert item == (4, f"uri of t/{FINAL_4}", len(manifest_of(4)))
    changes = [call for call, _ in writer.manifests.calls if call.startswith("put")]
    assert changes == ["put_if_not_exists", "put_if_exists"]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_crashed_commits_are_complete_or_absent(writer: Writer, step: int) -> None:
    """At whichever step a writer dies, readers see its whole version or none of it."""
    kill_at(writer, step)
    with pytest.raises(Killed):
        commit_to(writer.log, append(3, 1))
    reader = writer.others()
    expected = 3 if step <= 2 else 4
    assert reader.read_latest().version == expected
    assert reader.versions() == list(range(1, expected + 1))
    assert len(live_ids(reader)) == expected
    # a plain copy of the directory is the same table
    assert ObjectStoreLog(reader.store).read_latest().version == expected
    leftovers = staged(reader.store)
    assert len(leftovers) == (1 if step in (2, 5) else 0)
    assert reader.obsolete_staged_files([f"_versions/{number}" for number in leftovers]) == {
        f"_versions/{number}" for number in leftovers
    }
    commit_to(reader, append(expected, 1))
    assert reader.versions() == list(range(1, expected + 2))
    assert len(live_ids(reader)) == expected + 1


@pytest.mark.parametrize(
    "read", ["latest", "versions", "read_latest", "read", "find", "read_state"]
)
@pytest.mark.parametrize("step", [3, 4])
def test_every_read_finishes_interrupted_commits(writer: Writer, step: int, read: str) -> None:
    """Whichever read comes first has to complete the version, or later readers would miss it."""
    kill_at(writer, step)
    with pytest.raises(Killed):
        writer.log.publish(4, manifest_of(4))
    reader = writer.others()
    getattr(reader, read)(*([4] if read in ("read", "find") else []))
    assert staged(reader.store) == []
    item = reader.manifests.latest("uri of t")
    assert item is not None
    assert item.path == f"uri of t/{FINAL_4}"


def test_interrupted_readers_leave_finishing_to_others(writer: Writer) -> None:
    """A reader may die as well, at each of the steps that it completes for the writer."""
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(4, manifest_of(4))
    for step in (3, 4, 5):
        kill_at(writer, step)
        with pytest.raises(Killed):
            writer.log.read_latest()
    revive(writer)
    assert writer.log.read_latest().version == 4
    assert writer.others().versions() == [1, 2, 3, 4]


@pytest.mark.parametrize("step", [3, 4, 5])
def test_two_readers_can_finish_at_once(writer: Writer, step: int) -> None:
    """The steps of the two readers are interleaved in every way."""
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(4, manifest_of(4, "theirs"))
    revive(writer)
    seen: list[str] = []

    def another(call: str, path: Any) -> None:
        if not seen and (call, step) in (
            ("create_once", 3),
            ("put_if_exists", 4),
            ("delete", 5),
        ):
            seen.append("")
            seen[0] = writer.others().read_latest().tag

    writer.store.before = writer.manifests.before = another
    assert writer.log.read_latest().tag == "theirs"
    assert seen == ["theirs"]
    assert staged(writer.store) == []
    assert writer.others().read(4).tag == "theirs"


def test_unfinishable_versions_prevent_loading(writer: Writer) -> None:
    """A published version that cannot get its final name must not be skipped."""
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(4, manifest_of(4))
    revive(writer)

    def refuse(call: str, path: str) -> None:
        if call in ("create_once", "write") and path == FINAL_4:
            raise StoreUnavailableError("PUT was asked 8 times")

    writer.store.before = refuse
    for look in (writer.log.latest, writer.log.versions, writer.log.read_latest):
        with pytest.raises(StoreUnavailableError) as caught:
            look()
        assert "could not be copied to its final name" in caught.value.__notes__[0]
    assert writer.log.read(3).version == 3
    revive(writer)
    assert writer.log.read_latest().version == 4


def test_a_lost_newest_manifest_prevents_loading(writer: Writer) -> None:
    """Falling back to the previous version would silently undo a commit."""
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(4, manifest_of(4))
    revive(writer)
    writer.store.delete(f"_versions/{staged(writer.store)[0]}")
    for look in (writer.log.read_latest, writer.log.read_state):
        with pytest.raises(CorruptDataError, match=r"version 4 .* does not exist; the newest .* 3"):
            look()
    with pytest.raises(CorruptDataError, match="does not exist"):
        commit_to(writer.log, append(3, 1))


def test_a_lost_final_manifest_prevents_listing(writer: Writer) -> None:
    """The version before it is not the newest one."""
    writer.store.delete(FINAL_3)
    for look in (writer.others().versions, writer.others().latest):
        with pytest.raises(CorruptDataError, match=r"version 3 .* does not exist"):
            look()
    assert writer.others().versions(after=3) == []


@pytest.mark.parametrize(
    ("items", "version"),
    [
        ([None], None),
        (["lost"], None),
        (["lost", None], None),
        (["staged", "final"], 3),
        (["lost", "staged", "final"], 3),
    ],
)
def test_moved_manifests_are_looked_up_again(
    writer: Writer, items: list[str | None], version: int | None
) -> None:
    """Another process finishes or removes the version between two requests; the last item stays."""
    paths = {"lost": f"{FINAL_3}-lost", "staged": f"{FINAL_3}-staged", "final": FINAL_3}
    answers = [item and ManifestItem(3, f"uri of t/{paths[item]}", None) for item in items]
    manifests: Any = SimpleNamespace(
        get=lambda *_: answers.pop(0) if len(answers) > 1 else answers[0],
        latest=lambda _: ManifestItem(3, f"uri of t/{FINAL_3}", None),
        put_if_exists=lambda *_: True,
        where="a fake",
    )
    if items[0] != "final":
        writer.store.inner.write(paths["final"], writer.store.inner.read(FINAL_3))
    if version is None:
        writer.store.delete(FINAL_3)
    manifest = ExternalLog(writer.store.inner, manifests, "uri of t").find(3)
    assert (manifest.version if manifest else None) == version


@pytest.mark.parametrize("winner", [None, "uri of t/" + "_versions/18446744073709551611.manifest"])
def test_staged_files_stay_without_winner(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, winner: str | None
) -> None:
    """The item exists, but cannot be read: it may be the one that names the staged file."""
    item = winner and ManifestItem(4, winner, None)
    monkeypatch.setattr(type(writer.manifests), "put_if_not_exists", lambda *_: False)
    monkeypatch.setattr(type(writer.manifests), "get", lambda *_: item)
    assert not writer.log.publish(4, manifest_of(4))
    assert len(staged(writer.store)) == (1 if winner is None else 0)


def test_final_manifests_of_others_stay(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that loses the item deletes the final file only if it has created it."""
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(4, manifest_of(4))
    revive(writer)
    writer.store.inner.write(FINAL_4, manifest_of(4))
    monkeypatch.setattr(type(writer.manifests), "put_if_exists", lambda *_: False)
    assert writer.log.find(4) is not None
    assert writer.store.exists(FINAL_4)


def test_versions_without_items_are_registered(tmp_path: Path) -> None:
    """Another program publishes in the directory while the table is given its manifest store."""
    store = open_store(tmp_path / "t")
    plain = ObjectStoreLog(store)
    commit_to(plain, overwrite(0, 1), creation=CREATION)
    log = new_log(tmp_path, store)
    assert log.read_latest().version == 1
    commit_to(plain, append(1, 1))
    assert not log.publish(2, manifest_of(2))
    assert [item.version for item in log.manifests.items(log.base_uri)] == [2]


def test_later_versions_are_not_forgotten(writer: Writer) -> None:
    """Cleanups forget the versions that they have deleted."""
    writer.log.forget(2)
    assert [item.version for item in writer.manifests.inner.items("uri of t")] == [3]


def test_chosen_names_have_no_branches(tmp_path: Path) -> None:
    """The name of another table under a name that a user chose is unknown."""
    store, branch = open_store(tmp_path / "t"), open_store(tmp_path / "t" / "tree" / "b")
    with pytest.raises(UnsupportedFeatureError, match="by 'uri of t', which a user chose"):
        new_log(tmp_path, store).for_store(branch)
    manifests = new_log(tmp_path).manifests
    log = ExternalLog(store, manifests, base_uri_of(store, manifests))
    assert log.for_store(branch) == ExternalLog(branch, manifests, base_uri_of(branch, manifests))


@pytest.mark.parametrize(
    ("mark", "branch", "is_allowed"),
    [
        ("sqlite x/tree/b", None, True),
        ("sqlite x/tree/b", "b", True),
        ("sqlite x", "b", True),
        ("sqlite x/tree/c", "b", True),
        ("sqlite x", None, False),
        ("sqlite x", "c", False),
        ("sqlite y", "b", False),
        ("dynamodb x", "b", False),
    ],
)
def test_branches_follow_versions_of_their_table(
    tmp_path: Path, mark: str, branch: str | None, is_allowed: bool
) -> None:
    """The first version of a branch has the mark of the version that it was created from."""
    plain = create(1)
    newest = replace(plain.read_latest(), config={CONFIG_KEY: mark}, branch=branch)
    log = ExternalLog(plain.store, new_log(tmp_path).manifests, "x/tree/b")
    item = ManifestItem(1, f"x/tree/b/{manifest_path(1)}", None)
    log.manifests.put_if_not_exists("x/tree/b", item)
    if is_allowed:
        log.check_may_follow(newest)
        return
    with pytest.raises(InvalidInputError, match="are published in the manifest store"):
        log.check_may_follow(newest)


@pytest.mark.parametrize(
    ("kind", "uri", "name"),
    [
        ("dynamodb", "s3://bucket/a/t", "a/t"),
        ("postgresql", "s3://bucket/a/t", "s3://bucket/a/t"),
        ("dynamodb", "az://account/bucket/a/t", "az://account/bucket/a/t"),
    ],
)
def test_only_dynamodb_identifies_tables_by_key(kind: str, uri: str, name: str) -> None:
    """The reference's writers do so, while in other stores tables of two buckets stay apart."""
    store: Any = SimpleNamespace(uri=uri, shared_uri=uri, root="a/t")
    manifests: Any = SimpleNamespace(kind=kind)
    assert base_uri_of(store, manifests) == name
    store.root = ""
    if kind == "dynamodb" and uri.startswith("s3:"):
        with pytest.raises(InvalidInputError, match=r"root of a bucket.*use a folder"):
            base_uri_of(store, manifests)
    else:
        assert base_uri_of(store, manifests) == name


def test_deleted_tables_are_never_continued(tmp_path: Path) -> None:
    """Only the manifest store has their versions, under staged names that no longer exist."""
    store, manifests = WatchedStore(open_store(tmp_path / "t")), new_log(tmp_path).manifests
    writer = Writer(store, WatchedManifests(manifests), ExternalLog(store, manifests, "uri of t"))
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(1, manifest_of(1))
    revive(writer)
    assert not writer.others().publish(1, manifest_of(1)), "its manifest is staged"
    store.delete(f"_versions/{staged(store)[0]}")
    with pytest.raises(InvalidInputError, match=r"has versions up to 1 .*forget_versions"):
        writer.others().publish(1, manifest_of(1))


def test_manifests_of_wrong_size_are_refused(writer: Writer) -> None:
    """The manifest store records the size, which reveals a truncated or replaced file."""
    writer.log.publish(4, manifest_of(4))
    writer.store.write(FINAL_4, manifest_of(4, "x"))
    with pytest.raises(CorruptDataError, match="bytes instead of"):
        writer.others().read_latest()
    writer.store.write(FINAL_4, manifest_of(4))
    kill_at(writer, 3)
    with pytest.raises(Killed):
        writer.log.publish(5, manifest_of(5))
    writer.store.inner.write(f"_versions/{staged(writer.store)[0]}", b"cut")
    with pytest.raises(CorruptDataError, match="3 bytes, but"):
        writer.others().read_latest()


@pytest.mark.parametrize(
    "path",
    [
        "uri of t/_versions/3.manifest",
        "uri of t/_versions/../18446744073709551611.manifest",
        "uri of t/data/18446744073709551611.manifest",
        "uri of u/_versions/18446744073709551611.manifest",
        "uri of t/_versions/18446744073709551611.manifest-",
        "uri of t/_versions/18446744073709551611.manifest-x/../y",
        "18446744073709551611.manifest",
        "",
    ],
)
def test_items_must_name_their_versions_manifest(writer: Writer, path: str) -> None:
    """An item with another path could make readers follow a file outside of the table."""
    writer.manifests.put_if_not_exists("uri of t", ManifestItem(4, path, 1))
    with pytest.raises(CorruptDataError, match="not the path of a manifest"):
        writer.log.read_latest()


# --- answers that got lost


class LostError(Exception):
    """The answer did not come."""


@pytest.mark.parametrize("call", ["write", "put_if_not_exists", "put_if_exists", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_errors_at_any_step_commit_once(writer: Writer, call: str, when: str) -> None:
    """An error may come before or after a step took effect, and the retry must handle both."""
    failed: list[object] = []

    def fail(called: str, what: Any) -> None:
        is_manifest = isinstance(what, int) or what.startswith("_versions/")
        if called == call and is_manifest and not failed:
            failed.append(what)
            raise LostError

    setattr(writer.store, when, fail)
    setattr(writer.manifests, when, fail)
    manifest = commit_to(writer.log, append(3, 1))
    assert failed
    assert manifest.version == 4
    revive(writer)
    assert len(live_ids(writer.others())) == 4
    assert writer.others().versions() == [1, 2, 3, 4]


def test_lost_replies_are_recognized_as_ours(writer: Writer) -> None:
    """The retried request finds the version taken, but by the first request."""

    def say_taken(call: str, *arguments: Any) -> Any:
        answer = passed(call, *arguments)
        return False if call == "put_if_not_exists" else answer

    passed = writer.manifests._pass
    writer.manifests._pass = say_taken  # type: ignore[method-assign]  # a reply of another attempt
    assert writer.log.publish(4, manifest_of(4))
    assert staged(writer.store) == []


def test_commits_finished_by_readers_are_ours(writer: Writer) -> None:
    """A reader finishes the version before its writer checks whether it was published."""

    def read_and_lose(call: str, _version: int) -> None:
        if call == "put_if_not_exists":
            writer.manifests.after = lambda _call, _version: None
            assert writer.others().read_latest().version == 4
            raise LostError

    writer.manifests.after = read_and_lose
    assert commit_to(writer.log, append(3, 1)).version == 4
    assert len(live_ids(writer.others())) == 4


def test_unreachable_manifest_stores_leave_uncertainty(
    writer: Writer,
) -> None:
    """The commit may be tried again later and must then be made only once."""

    def away(call: str, _version: int) -> None:
        raise StoreUnavailableError("asked 6 times")

    def lose(call: str, _version: int) -> None:
        if call == "put_if_not_exists":
            writer.manifests.before = away
            raise LostError

    planned = append(3, 1)
    writer.manifests.after = lose
    with pytest.raises(CommitUncertainError):
        commit_to(writer.log, planned)
    assert len(staged(writer.store)) == 1  # it may be the version's
    revive(writer)
    with pytest.raises(AssertionError, match="already committed as version 4"):
        commit_to(writer.log, planned)
    assert len(live_ids(writer.others())) == 4


def test_refusals_after_publishing_leave_uncertainty(
    writer: Writer,
) -> None:
    """The version exists, so the commit must not be reported as refused."""

    def refuse(call: str, path: str) -> None:
        if call in ("create_once", "write") and path == FINAL_4:
            raise StoreRefusedError("403")

    def refused(look: Callable[[], object]) -> StoreRefusedError:
        with pytest.raises(StoreRefusedError) as caught:
            look()
        return caught.value

    writer.store.before = refuse
    with pytest.raises(CommitUncertainError):
        commit_to(writer.log, append(3, 1))
    assert "could not be copied to its final name" in refused(writer.log.read_latest).__notes__[0]


# --- others who do not know of the manifest store


def test_existing_tables_can_adopt_manifest_stores(tmp_path: Path) -> None:
    """A table's earlier versions exist only in its directory and must stay readable."""
    store = open_store(tmp_path / "t")
    plain = ObjectStoreLog(store)
    commit_to(plain, overwrite(0, 1), creation=CREATION)
    commit_to(plain, append(1, 1))
    log = new_log(tmp_path, store)
    assert log.versions() == [1, 2]
    assert log.has(2)
    assert not log.has(3)
    assert log.find(3) is None
    commit_to(log, append(2, 1))
    assert log.versions() == [1, 2, 3]
    assert [log.read(version).version for version in (1, 2, 3)] == [1, 2, 3]
    assert [manifest.version for manifest in log.manifests.items("uri of t")] == [3]
    assert len(live_ids(log)) == 3


def test_tables_with_v1_names_keep_them(tmp_path: Path) -> None:
    """Mixed naming schemes in one directory are invalid for other readers."""
    store = open_store(tmp_path / "t")
    store.write("_versions/1.manifest", manifest_of(1))
    log = new_log(tmp_path, store)
    assert log.read_latest().version == 1
    assert log.publish(2, manifest_of(2))
    again = new_log(tmp_path, store)
    assert again.read_latest().version == 2
    assert again.publish(3, manifest_of(3))
    assert names(store) == ["1.manifest", "2.manifest", "3.manifest"]


def test_writers_need_the_tables_manifest_store(writer: Writer) -> None:
    """Without the option the table can be read but not written."""
    inner = writer.store.inner
    plain = ObjectStoreLog(inner.inner if isinstance(inner, WithoutCreateOnce) else inner)
    assert plain.read_latest().config[CONFIG_KEY] == "sqlite uri of t"
    with pytest.raises(InvalidInputError, match="Set the storage option manifest_store"):
        commit_to(plain, append(3, 1))
    assert plain.versions() == [1, 2, 3]


def test_wrong_manifest_stores_are_refused(writer: Writer, tmp_path: Path) -> None:
    """A wrong option would publish versions where the table's other writers do not look."""
    (tmp_path / "other").mkdir()
    empty = ExternalLog(writer.store.inner, new_log(tmp_path / "other").manifests, "uri of t")
    moved = ExternalLog(writer.store.inner, writer.manifests.inner, "another uri")
    for log, says in ((empty, "has no versions under"), (moved, "not in '")):
        assert log.read_latest().version == 3
        with pytest.raises(InvalidInputError, match=says):
            commit_to(log, append(3, 1))


@pytest.mark.parametrize("operation", ["restore", "replace the config"])
def test_the_newest_versions_mark_counts(tmp_path: Path, operation: str) -> None:
    """The mark in the config says which manifest store a table uses, whatever a restore or
    overwrite does to the config.
    """
    store = open_store(tmp_path / "t")
    plain = ObjectStoreLog(store)
    commit_to(plain, overwrite(0, 1), creation=CREATION)
    log = new_log(tmp_path, store)
    commit_to(log, configure(1, a="b"))
    if operation == "restore":
        manifest = commit_to(log, transaction(2, Restore(1)))
    else:
        manifest = commit_to(
            log, transaction(2, UpdateConfig(config=MapUpdate((("c", "d"),), replace=True)))
        )
    assert manifest.config[CONFIG_KEY] == "sqlite uri of t"
    leaving = ExternalLog(store, log.manifests, log.base_uri, is_marking=False)
    manifest = commit_to(leaving, configure(3, **{CONFIG_KEY: None}))
    assert CONFIG_KEY not in manifest.config
    manifest = commit_to(plain, transaction(4, Restore(2)))
    assert CONFIG_KEY not in manifest.config


def test_versions_past_the_manifest_store_count(
    writer: Writer,
) -> None:
    """The other writer is pylance, which does not know the table's mark, and the commit is rebased
    on its version.
    """
    store = writer.store.inner
    theirs = manifest_like(writer, 4)
    store.write(FINAL_4, theirs)
    assert writer.log.read_latest().version == 3  # as the reference has it
    assert writer.log.find(4) is None
    assert not writer.others().has(4)
    assert writer.others().versions() == [1, 2, 3]
    assert writer.others().versions(after=3) == []
    manifest = commit_to(writer.log, append(3, 1))
    assert manifest.version == 5
    assert writer.others().versions() == [1, 2, 3, 4, 5]
    assert store.read(FINAL_4) == theirs


@pytest.mark.parametrize("step", [2, 3])
def test_versions_published_during_commits_stand(tmp_path: Path, step: int) -> None:
    """Another writer publishes past the manifest store while this one commits."""
    store = WatchedStore(open_store(tmp_path / "t"))
    manifests = WatchedManifests(new_log(tmp_path).manifests)
    writer = Writer(store, manifests, ExternalLog(store, manifests, "uri of t"))
    commit_to(writer.log, overwrite(0, 1), creation=CREATION)
    commit_to(writer.log, append(1, 1))
    commit_to(writer.log, append(2, 1))
    theirs = manifest_like(writer, 4)

    def cut_in(call: str, what: Any) -> None:
        if (call, step) in (("put_if_not_exists", 2), ("create_once", 3)):
            store.inner.create_once(FINAL_4, theirs)

    def in_store(call: str, path: str) -> None:
        if path.startswith("_versions/"):
            cut_in(call, path)

    store.before, manifests.before = in_store, cut_in
    manifest = commit_to(writer.log, append(3, 1))
    assert manifest.version == 5
    revive(writer)
    assert store.read(FINAL_4) == theirs
    assert writer.others().versions() == [1, 2, 3, 4, 5]
    item = manifests.get("uri of t", 4)
    assert item is not None
    assert item.size_bytes == len(theirs)
    assert staged(store) == []


def manifest_like(writer: Writer, version: int) -> bytes:
    """What another program makes of the newest version: the same rows, another version."""
    newest = writer.others().read_latest()
    manifest = replace(
        newest.successor(),
        inline_transaction=encode_transaction(transaction(newest.version, Append(()))),
    )
    assert manifest.version == version
    return encode_manifest(manifest)


# --- a table that was deleted


def test_leftover_items_prevent_recreating_a_table(
    writer: Writer,
) -> None:
    """The table's files are gone, but the manifest store still has its items."""
    for file in writer.store.list():
        writer.store.delete(file.path)
    with pytest.raises(NotFoundError, match=r"no dataset .* has versions up to 3"):
        writer.log.read_latest()
    with pytest.raises(InvalidInputError, match=r"forget_versions\(\)"):
        commit_to(writer.log, overwrite(0, 1), creation=CREATION)
    writer.log.forget()
    assert commit_to(writer.log, overwrite(0, 1), creation=CREATION).version == 1


def test_slow_readers_revive_no_removed_version(writer: Writer) -> None:
    """The version is removed while a reader is about to give it its final name."""
    kill_at(writer, 3)
    with pytest.raises(Killed):
        commit_to(writer.log, append(3, 1))
    revive(writer)

    def sleep(call: str, path: str) -> None:
        if call in ("create_once", "write") and path == FINAL_4:
            writer.store.before = lambda _call, _path: None
            others = writer.others()
            commit_to(others, append(4, 1))
            others.remove([4])

    writer.store.before = sleep
    assert writer.log.read_latest().version == 5
    assert writer.others().versions() == [1, 2, 3, 5]
    assert FINAL_4.rpartition("/")[2] not in names(writer.store)


def test_racing_writers_publish_versions_once(tmp_path: Path) -> None:
    """Threads with separate logs race for every version, and no append may be lost."""
    store = make_store()
    commit_to(new_log(tmp_path, store), overwrite(0, 1), creation=CREATION)

    def write(_number: int) -> None:
        for _ in range(3):
            commit_to(new_log(tmp_path, store), append(1, 1), environment=MACHINE)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    log = new_log(tmp_path, store)
    assert log.versions() == list(range(1, 26))
    assert len(live_ids(log)) == 25
    assert staged(store) == []


@pytest.mark.parametrize("action", ["open", "poll", "append"])
def test_actions_send_few_requests(writer: Writer, action: str) -> None:
    """Every request to the manifest store adds latency to each commit and poll."""
    expected: dict[str, tuple[list[str], list[str]]] = {
        "open": (["read_ranges"], ["latest"]),
        "poll": ([], ["get"]),
        "append": (
            ["write", "read_ranges", "exists", "write", "create_once", "delete"],
            ["latest", "put_if_not_exists", "put_if_exists"],
        ),
    }
    actions: dict[str, Callable[[], object]] = {
        "open": writer.log.read_latest,
        "poll": lambda: writer.log.find(4),
        "append": lambda: commit_to(writer.log, append(3, 1)),
    }
    actions[action]()
    in_store, in_manifests = expected[action]
    if isinstance(writer.store.inner, WithoutCreateOnce) and action == "append":
        in_store = [*in_store[:5], "exists", "write", "delete"]
    assert [call for call, _ in writer.store.calls] == in_store
    assert [call for call, _ in writer.manifests.calls] == in_manifests
