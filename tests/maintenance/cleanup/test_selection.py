"""Which versions a cleanup selects by age and number."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.environment import MACHINE
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.report import CleanupReport
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import manifest_path
from tests.contracts.watched_stores import WatchedStore
from tests.maintenance.cleanup.tables import DAY, busy_table, in_days, new_table, on, paths_of, rows


def test_versions_stay_until_they_are_old() -> None:
    """The default of two weeks protects readers and time travel."""
    ds = busy_table()
    assert ds.cleanup().versions == ()
    two_weeks = CleanupRules()
    assert cleanup(ds.table, two_weeks, environment=in_days(13.9)).versions == ()
    assert cleanup(ds.table, two_weeks, environment=in_days(14.1)).versions == tuple(
        range(1, ds.version)
    )


def test_versions_without_time_use_their_file() -> None:
    """Old writers stated no time, and a missing time must not make a version look ancient."""
    ds = busy_table()
    for version in range(1, ds.version):
        manifest = replace(ds.table.log.read(version), timestamp_nanos=None)
        ds.table.store.write(ds.table.log.manifest_path(version), encode_manifest(manifest))
    ds = lance_stream.open_dataset(ds.uri)
    rules = CleanupRules(older_than=7 * DAY)
    assert cleanup(ds.table, rules, environment=in_days(6)).versions == ()
    # What states a time has that one, though its file is a young copy.
    old = replace(ds.table.log.read(1), timestamp_nanos=MACHINE.now_nanos() - 8 * 86_400 * 10**9)
    ds.table.store.write(ds.table.log.manifest_path(1), encode_manifest(old))
    ds = lance_stream.open_dataset(ds.uri)
    assert cleanup(ds.table, rules, is_dry_run=True).versions == (1,)
    assert cleanup(ds.table, rules, environment=in_days(8)).versions == tuple(range(1, ds.version))


def test_retention_rules_are_combined() -> None:
    """A version goes only if it is both old and not among the newest."""
    ds = busy_table()
    rules = CleanupRules(older_than=DAY, retain_versions=4)
    assert cleanup(ds.table, rules).versions == ()
    assert cleanup(ds.table, rules, environment=in_days(2)).versions == tuple(
        range(1, ds.version - 3)
    )


def test_versions_after_young_ones_stay() -> None:
    """A clock that was wrong for a while must not make a gap."""
    ds = new_table()
    for days in (-9, 0, -9):
        ds = ds.append(rows(days))
        nanos = ds.table.manifest.timestamp_nanos or 0
        moved = replace(ds.table.manifest, timestamp_nanos=nanos + days * 86_400 * 10**9)
        ds.table.store.write(ds.table.log.manifest_path(ds.version), encode_manifest(moved))
        ds = lance_stream.open_dataset(ds.uri)
    ds = ds.append(rows(1))
    rules = CleanupRules(older_than=2 * DAY)
    assert cleanup(ds.table, rules).versions == ()
    assert cleanup(ds.table, rules, environment=in_days(3)).versions == (1, 2, 3, 4)


@pytest.mark.parametrize("age", [timedelta(0), "0s", "0 days"])
def test_age_zero_keeps_only_the_newest(age: str | timedelta) -> None:
    """Zero is falsy in Python and must not be mistaken for no limit."""
    ds = busy_table()
    assert ds.cleanup(older_than=age).versions == tuple(range(1, ds.version))


@pytest.mark.parametrize(
    "call",
    [
        lambda ds: ds.cleanup(older_than="a while"),
        lambda ds: ds.cleanup(older_than=timedelta(days=-1)),
        lambda ds: ds.cleanup(retain_versions=0),
        lambda ds: ds.cleanup(retain_versions=True),
        lambda ds: ds.cleanup(retain_versions=1.5),
        lambda ds: ds.cleanup(expire_consumers="0d"),
        lambda _ds: CleanupRules(older_than=timedelta(days=-1)),
    ],
)
def test_invalid_rules_are_refused(call: Callable[[Dataset], CleanupReport]) -> None:
    """A rule that is misread could delete versions that the user wanted to keep."""
    ds = busy_table()
    before = paths_of(ds)
    with pytest.raises(InvalidInputError):
        call(ds)
    assert paths_of(ds) == before


def test_idle_cleanup_reads_two_manifests() -> None:
    """A daily cleanup with nothing to do must cost few requests at any number of versions."""
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    assert cleanup(on(ds, store).table, CleanupRules()).num_files == {}
    paths = [path for call, path in store.calls if call.startswith("read")]
    assert paths == [manifest_path(ds.version), manifest_path(1)]


@pytest.mark.parametrize(("extra", "versions"), [(-1000, ()), (0, (1,)), (1000, (1,))])
def test_versions_of_exactly_the_age_go(extra: int, versions: tuple[int, ...]) -> None:
    """The age is the time for which a version is kept."""
    ds = new_table().append(rows(1))
    for version, nanos in ((1, 10**18), (2, 2 * 10**18)):
        manifest = replace(ds.table.log.read(version), timestamp_nanos=nanos)
        ds.table.store.write(ds.table.log.manifest_path(version), encode_manifest(manifest))
    ds = lance_stream.open_dataset(ds.uri)
    now = 10**18 + DAY // timedelta(microseconds=1) * 1000 + extra
    environment = replace(MACHINE, now_nanos=lambda: now)
    rules = CleanupRules(older_than=DAY, delete_unverified=True)
    assert cleanup(ds.table, rules, environment=environment).versions == versions
