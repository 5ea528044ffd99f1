"""Tags, branches and consumers protect versions, until they expire."""

import json
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

import lance_stream
from lance_stream import (
    BadDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.environment import MACHINE
from lance_stream.errors import StoreRefusedError
from lance_stream.maintenance.branches import delete_branch
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.protections import expired_tags
from lance_stream.maintenance.cleanup.report import COMMIT_IN_PROGRESS, CleanupReport
from lance_stream.maintenance.cleanup.rules import GRACE, CleanupRules
from lance_stream.maintenance.consumers import list_consumers, record_progress
from lance_stream.snapshot.tag_files import hold_version
from lance_stream.snapshot.timestamps import as_rfc3339
from lance_stream.table.paths import branch_file_path
from tests.maintenance.cleanup.tables import (
    ALL,
    DAY,
    busy_table,
    in_days,
    paths_of,
    rows,
    unnamed_files,
)

MICROSECOND = timedelta(microseconds=1)


def test_tagged_versions_stay_readable() -> None:
    """A tag promises its version for as long as it exists, with all files."""
    ds = busy_table()
    ds.tags.create("gold", 4)
    before = ds.checkout(4).to_table()
    report = ds.cleanup(retain_versions=1)
    assert report.protected == {"gold": 1}
    assert "protected={'gold': 1}" in repr(report)
    assert ds.table.log.versions() == [4, ds.version]
    assert ds.checkout("gold").to_table() == before
    assert ds.checkout("gold").verify() == []
    assert unnamed_files(ds) == []


def test_consumers_hold_later_versions() -> None:
    """A consumer needs the version that it finished with and all later ones."""
    ds = busy_table()
    record_progress(ds.table.refs, "totals", 5)
    record_progress(ds.table.refs, "faster", 7)
    expected = ds.changes(after=5).read_all()
    report = ds.cleanup(retain_versions=1)
    assert report.versions == (1, 2, 3, 4)
    assert report.protected["lance_stream.consumer.totals"] == ds.version - 5
    assert ds.changes(after=5).read_all() == expected
    assert unnamed_files(ds) == []


def test_idle_consumers_can_expire() -> None:
    """A reader that never returns would keep all versions for ever, while one that is up to date
    is no burden.
    """
    ds = busy_table()
    record_progress(ds.table.refs, "gone", 2)
    record_progress(ds.table.refs, "done", ds.version)
    rules = CleanupRules(older_than=None, expire_consumers=30 * DAY)
    report = cleanup(ds.table, rules, is_dry_run=True, environment=in_days(31))
    assert (report.expired_consumers, report.versions) == (("gone",), tuple(range(1, ds.version)))
    assert [consumer.name for consumer in list_consumers(ds.table.refs)] == ["done", "gone"]
    assert cleanup(ds.table, rules, environment=in_days(29)).versions == (1,)
    assert cleanup(ds.table, rules, environment=in_days(31)).versions == tuple(range(2, ds.version))
    assert [consumer.name for consumer in list_consumers(ds.table.refs)] == ["done"]


@pytest.mark.parametrize(
    ("path", "content", "match"),
    [
        ("_refs/branches/dev/x.json", b"{}", "looks like a branch"),
        ("_refs/branches/x.json", b'{"parentVersion": 1}', "should have the versions of a branch"),
        ("_refs/tags/a b.json", b'{"version": 1}', "looks like a tag"),
        ("_refs/tags/gold.json", b"", "looks like a tag"),
        ("_refs/tags/below/gold.json", b'{"version": 1}', "looks like a tag"),
        ("_refs/bookmarks/gold.json", b"{}", "neither a tag nor a branch"),
        ("_versions/v3.manifest", b"", "looks like a manifest"),
        ("tree/dev/_versions/1.manifest", b"", "manifest"),
        ("tree/d v/_versions/1.manifest", b"", "not valid for a branch"),
    ],
)
def test_unreadable_references_stop_the_cleanup(path: str, content: bytes, match: str) -> None:
    """An unreadable reference may protect a version."""
    ds = busy_table()
    ds.table.store.write(path, content)
    before = paths_of(ds)
    with pytest.raises(BadDataError, match=match):
        ds.cleanup(retain_versions=1)
    assert paths_of(ds) == before


def test_holds_of_killed_verbs_expire() -> None:
    """A verb protects its version by a tag, which a kill would leave for ever."""
    ds = busy_table()
    with hold_version(ds.table.refs, 3):
        name = next(iter(ds.tags.list()))
        remaining = ds.table.store.read(f"_refs/tags/{name}.json")
    assert ds.tags.list() == {}
    ds.table.store.write(f"_refs/tags/{name}.json", remaining)
    assert cleanup(ds.table, ALL, environment=in_days(6.9)).protected == {name: 1}
    assert cleanup(ds.table, ALL, environment=in_days(7.1)).versions == (3,)
    assert ds.tags.list() == {}


def test_holds_may_outlive_their_verbs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The verb has committed: an error would make its caller repeat it, or hide its own error."""
    ds = busy_table()
    refuse = Mock(side_effect=StoreRefusedError("the credentials do not allow deletes"))
    monkeypatch.setattr(type(ds.table.store), "delete", refuse)
    restored = ds.restore(2)
    assert restored.version == ds.version + 1
    with pytest.raises(NotFoundError, match="version 99"), hold_version(ds.table.refs, 3):
        ds.table.log.read(99)
    assert [record.message.count("do not allow deletes") for record in caplog.records] == [1, 1]
    monkeypatch.undo()
    assert cleanup(restored.table, ALL, environment=in_days(7.1)).protected == {}
    assert restored.tags.list() == {}


def test_holds_on_branches_expire() -> None:
    """A killed restore would otherwise keep its branch from being deleted for ever."""
    ds = busy_table()
    ds.branches.create("dev")
    dev = ds.checkout(("dev", None))
    with hold_version(dev.table.refs, dev.version):
        with pytest.raises(InvalidInputError, match="is running, or was killed"):
            delete_branch(ds.table.refs, "dev", in_days(6.9))
        delete_branch(ds.table.refs, "dev", in_days(7.1))
    assert ds.tags.list() == {}
    assert ds.branches.list() == {}


def test_damaged_tags_stop_the_cleanup() -> None:
    """The tag may name a version that somebody relies on."""
    ds = busy_table()
    ds.table.store.write("_refs/tags/gold.json", b"?")
    before = paths_of(ds)
    with pytest.raises(BadDataError, match="'gold'"):
        ds.cleanup(retain_versions=1)
    assert paths_of(ds) == before


@pytest.mark.parametrize("path", ["_refs/.DS_Store", "_refs/tags/.hidden", "_refs/.tmp/x"])
def test_hidden_files_protect_nothing(path: str) -> None:
    """File managers leave some; other files may be references of a later release."""
    ds = busy_table()
    hidden = path.rpartition("/")[2].startswith(".")
    ds.table.store.write(path, b"?")
    if hidden:
        assert ds.cleanup(retain_versions=1).versions == tuple(range(1, ds.version))
        return
    with pytest.raises(UnsupportedFeatureError, match="is neither a tag nor a branch"):
        ds.cleanup(retain_versions=1)


@pytest.mark.parametrize(
    ("name", "micros_ago", "is_expired"),
    [
        ("lance_stream.hold.x", GRACE // MICROSECOND - 1, False),
        ("lance_stream.hold.x", GRACE // MICROSECOND, True),
        ("lance_stream.hold.x", None, False),
        ("lance_stream.clone.x", GRACE // MICROSECOND, False),
        ("gold", GRACE // MICROSECOND, False),
    ],
)
def test_old_holds_alone_expire(name: str, micros_ago: int | None, is_expired: bool) -> None:
    """Users' tags and those of clones stay for ever, and without a time nobody knows the age."""
    ds = busy_table()
    now = MACHINE.now_nanos()
    times = {} if micros_ago is None else {"updatedAt": as_rfc3339(now - micros_ago * 1000)}
    ds.table.store.write(f"_refs/tags/{name}.json", json.dumps({"version": 3} | times).encode())
    clock = replace(MACHINE, now_nanos=lambda: now // 1000 * 1000)
    assert expired_tags(ds.table.refs, clock) == ([name] if is_expired else [])


def test_tags_protect_their_branch_alone() -> None:
    """The versions of branches have the same numbers."""
    ds = busy_table()
    ds.checkout(3).branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev").append(rows(60)).append(rows(61))
    dev.tags.create("silver", 4)
    ds.tags.create("gold", 6)
    report = ds.cleanup(retain_versions=1)
    assert report.protected == {"gold": 1, "branch dev": 1}
    assert ds.table.log.versions() == [3, 6, ds.version]
    assert dev.cleanup(retain_versions=1).protected == {"silver": 1}
    assert dev.table.log.versions() == [4, 5]
    assert dev.verify() == ds.verify() == []


@pytest.mark.parametrize(
    ("protector", "text"),
    [
        ("branch dev", "the branch dev"),
        ("gold", "the tag gold"),
        ("lance_stream.consumer.totals", "the consumer totals"),
        ("lance_stream.snapshot.totals", "the consumer totals"),
        ("lance_stream.hold.x", "the tag lance_stream.hold.x"),
        (COMMIT_IN_PROGRESS, "a commit in progress"),
    ],
)
def test_reports_name_what_protects_versions(protector: str, text: str) -> None:
    """Its kind says how to release the versions."""
    report = CleanupReport((), {}, 0, {protector: 2}, (), is_dry_run=False)
    assert str(report).splitlines()[1:] == [f"  kept 2 for {text}"]


@pytest.mark.parametrize("has_file", [True, False])
def test_branches_without_name_protect_themselves(has_file: bool) -> None:
    """A writer that knows no branches states no name, and a killed creator leaves no file."""
    ds = busy_table()
    ds.checkout(3).branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev").append(rows(60)).append(rows(61))
    dev.tags.create("silver", 4)
    table = dev.table
    if has_file:
        table = replace(table, manifest=replace(table.manifest, branch=None))
    else:
        ds.table.store.delete(branch_file_path("dev"))
    assert cleanup(table, ALL).protected == {"silver": 1}
    assert table.log.versions() == [4, 5]
