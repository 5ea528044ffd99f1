"""Compaction and cleanup as Spark jobs: killed in the middle, and beside writers."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from tests.cluster.drivers import JOB_SECONDS, Site, messages_of
from tests.cluster.jobs import stream_job
from tests.cluster.machines import Program, wait_until
from tests.cluster.meetings import PATIENT, SECONDS, Meeting
from tests.cluster.standalone import Worker
from tests.servers.store_faults import Act, CutBefore
from tests.servers.store_requests import StoreRequest

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

NUM_FRAGMENTS = 48
ROWS_A_FRAGMENT = 10
SHARED = {"kind": "share_work"}


def test_killed_maintenance_completes_when_repeated(site: Site) -> None:
    """A compaction in several commits is followed by a cleanup that removes everything that it
    replaced.
    """
    before = make_table(site, "kept")
    snapshots = {version: site.snapshot("kept", version) for version in range(1, before + 1)}
    compact = {
        "kind": "compact",
        "table": f"{site.folder}/kept",
        "target_rows": 4 * ROWS_A_FRAGMENT,
        "bytes_per_commit": num_bytes(site, "kept") // 6,
    }
    deaths: list[int] = []
    writes = {"key": site.key("kept/data/"), "matches": site.is_from_worker("PUT")}
    site.proxy.add(
        kill_on_request(site, Worker.kill_executors, deaths, CutBefore()), at=1, **writes
    )
    site.proxy.add(kill_on_request(site, Worker.kill_python_workers, deaths), at=3, **writes)
    for kill_driver in (CutBefore(), None):  # before a commit of its own, and after it
        driver = site.start_driver([SHARED, compact])
        site.at_commit("kept", 2, Act(lambda _, victim=driver: victim.kill(), kill_driver))
        wait_for_death(site, driver)
    messages = site.run([SHARED, compact])
    assert len(deaths) == 2
    assert all(deaths)
    (after,) = [row["version"] for row in messages if "compacted" in row]
    ds = site.open("kept")
    operations = [version.operation for version in ds.versions()][before:]
    assert operations == ["Rewrite"] * (after - before)
    assert after - before > 3, "the first driver committed once, and the second twice"
    assert len(ds.table.manifest.fragments) <= NUM_FRAGMENTS // 3
    assert ds.verify(deep=True) == []
    assert site.snapshot("kept", after) == snapshots[before]
    assert ds.changes(after=before).read_all().num_rows == 0
    assert {snapshot: site.snapshot("kept", snapshot) for snapshot in snapshots} == snapshots
    assert site.unreferenced_files("kept"), "of attempts that do not count"

    site.proxy.clear()
    clean = {
        "kind": "cleanup",
        "table": f"{site.folder}/kept",
        "retain_versions": 1,
        "delete_unverified": True,
    }
    deaths.clear()
    deletions = {"matches": site.is_from_worker("DELETE", "POST")}
    site.proxy.add(kill_on_request(site, Worker.kill_executors, deaths), at=1, **deletions)
    site.proxy.add(
        kill_on_request(site, Worker.kill_python_workers, deaths, CutBefore()), at=3, **deletions
    )
    driver = site.start_driver([SHARED, clean])
    site.proxy.add(Act(lambda _: driver.kill()), at=6, **deletions)
    wait_for_death(site, driver)
    assert len(deaths) == 2
    assert all(deaths)
    assert site.unreferenced_files("kept"), "the driver died before the last deletion"
    site.proxy.clear()
    (cleaned,) = [message for message in site.run([SHARED, clean]) if "cleaned" in message]
    assert cleaned["files"] > 0
    ds = site.open("kept")
    assert [version.version for version in ds.versions()] == [after]
    assert site.unreferenced_files("kept") == []
    assert ds.verify(deep=True) == []
    assert site.snapshot("kept", after) == snapshots[before]


def test_cleanups_spare_files_of_running_writes(site: Site) -> None:
    """Two writers have written their files and wait with the commit while cleanups run, and the
    files that the upsert has read are compacted away and deleted meanwhile.
    """
    site.add_events(seed=12)
    arguments = {"storage_options": PATIENT, "compact": None}
    streams = [stream_job(mode, site.folder, **arguments) for mode in ("append", "upsert")]
    go = site.driver.folder / "go"
    tables = [f"{site.folder}/{mode}" for mode in ("append", "upsert")]
    upkeep: list[dict[str, Any]] = [
        {"kind": "wait_for", "file": str(go)},
        *({"kind": "compact", "table": table, "target_rows": 1000} for table in tables),
        *({"kind": "cleanup", "table": table, "retain_versions": 1} for table in tables),
    ]
    lines = [*([stream] for stream in streams), upkeep]
    driver = site.start_driver([{"kind": "read_together", "lines": lines}])

    def clean_up() -> None:
        go.touch()
        wait_until(lambda: len(messages_of_cleanups(driver)) == len(tables), SECONDS, driver.output)

    meeting = Meeting(len(streams), clean_up)
    for mode in ("append", "upsert"):
        site.at_commit(mode, 3, meeting.fault())
    assert driver.wait(JOB_SECONDS) == 0, driver.output()[-5000:]
    assert meeting.is_complete
    assert all(row["files"] > 0 for row in messages_of_cleanups(driver))
    site.check("append", "upsert")
    for mode in ("append", "upsert"):
        assert site.open(mode).verify(deep=True) == []


def make_table(site: Site, name: str) -> int:
    """Make a table of small fragments, with updated and deleted rows; return its version."""

    def rows(first: int, seq: int) -> pa.Table:
        ids = range(first, first + ROWS_A_FRAGMENT)
        values = [f"{seq}-{id_}" for id_ in ids]
        return pa.table({"id": ids, "key": ids, "seq": [seq] * len(ids), "value": values})

    options = site.bucket.storage_options
    ds = lance_stream.create_dataset(f"{site.folder}/{name}", rows(0, 0), storage_options=options)
    for number in range(1, NUM_FRAGMENTS):
        ds = ds.append(rows(number * ROWS_A_FRAGMENT, 0))
    ds = ds.upsert(rows(ROWS_A_FRAGMENT // 2, 1), on=["key"])
    return ds.delete("id % 7 = 3").version


def num_bytes(site: Site, table: str) -> int:
    """Return the size of a table's data files."""
    return sum(file.size_bytes for file in site.open(table).table.store.list("data"))


def kill_on_request(
    site: Site, kill: Callable[[Worker], int], deaths: list[int], then: CutBefore | None = None
) -> Act:
    """Return a fault: processes of the worker that has sent a request are killed."""

    def act(request: StoreRequest) -> None:
        worker = site.worker_of(request)
        assert worker is not None
        deaths.append(kill(worker))

    return Act(act, then)


def wait_for_death(site: Site, driver: Program) -> None:
    """Wait until a driver has been killed, and its executors have ended."""
    assert driver.wait(JOB_SECONDS) != 0, "it was killed"
    wait_until(lambda: not site.cluster.has_executors(), 60)
    site.proxy.quiet(60)


def messages_of_cleanups(driver: Program) -> list[dict[str, Any]]:
    """Return the messages of a driver about cleanups."""
    return [message for message in messages_of(driver) if "cleaned" in message]
