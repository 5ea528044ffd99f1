"""Large upserts, whose ranges of keys are tasks: drivers and executors are killed at each step."""

from typing import Any

import pytest

from tests.cluster.drivers import JOB_SECONDS, Site, messages_of
from tests.cluster.jobs import stream_job
from tests.cluster.meetings import PATIENT, Meeting
from tests.cluster.standalone import Worker
from tests.servers.store_faults import Act, CutBefore, Fault
from tests.servers.store_requests import StoreRequest

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

STREAMS = ("upsert", "apply_changes", "scd2")
STEPS = {
    "rows are staged": "_lance_stream/staged_rows/",
    "keys are indexed": "_lance_stream/key_index/",
    "ranges are written": "data/",
    "before the commit": "_versions/",
    "after the commit": "_versions/",
}
"""Where the request goes at which a process is killed."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "500ms",
    "spark.speculation.multiplier": "2",
}
ROW_BYTES = 150_000
"""Then each task has more than a megabyte, and stages it in a file."""

NUM_BATCHES = len(STEPS) + 2


def jobs_of(site: Site) -> list[dict[str, Any]]:
    """Return the job of all streams at once, each batch a large one."""
    arguments = {"storage_options": PATIENT, "compact": None}
    streams = [
        stream_job(mode, site.folder, "changes" if mode == "apply_changes" else "", **arguments)
        for mode in STREAMS
    ]
    return [
        {"kind": "share_work"},
        {"kind": "read_together", "lines": [[stream] for stream in streams]},
    ]


def at_step(site: Site, mode: str, step: str, fault: Fault) -> None:
    """Let a request of the second batch of a run meet a fault."""
    manifests = site.key(f"{mode}/_versions/")
    if STEPS[step] == "_versions/":
        site.at_commit(mode, 2, fault)
        return

    def is_of_second_batch(request: StoreRequest) -> bool:
        before = site.proxy.requests[: request.number]
        return request.method in ("PUT", "POST") and any(
            request.kind == "put once" and manifests in request.key for request in before
        )

    site.proxy.add(fault, key=site.key(f"{mode}/{STEPS[step]}"), matches=is_of_second_batch)


def test_killed_drivers_leave_each_row_once(site: Site) -> None:
    """Three streams run at once, so each kill meets each of them at another step; speculation is
    off, because its second attempts would continue while others are held.
    """
    site.add_events(seed=21, num_batches=NUM_BATCHES, num_bytes=ROW_BYTES)
    site.add_upserted("changes")
    jobs, steps = jobs_of(site), list(STEPS)
    committed = dict.fromkeys(STREAMS, 0)
    for turn in range(len(steps)):
        driver = site.start_driver(jobs)
        meeting = Meeting(len(STREAMS), driver.kill)
        for number, mode in enumerate(STREAMS):
            step = steps[(turn + 2 * number) % len(steps)]
            is_done = step == "after the commit"
            at_step(site, mode, step, meeting.fault(None if is_done else CutBefore()))
            committed[mode] += 2 if is_done else 1
        site.await_death(driver, meeting)
        assert {mode: site.version_of(mode) for mode in STREAMS} == committed
    batches = site.run(jobs)
    site.check(*STREAMS)
    assert {mode: site.version_of(mode) for mode in STREAMS} == dict.fromkeys(STREAMS, NUM_BATCHES)
    assert all(not batch.get("skipped") or batch["version"] for batch in batch_messages(batches))
    for mode in STREAMS:
        ds = site.open(mode)
        assert ds.table.store.list("_lance_stream/staged_rows"), "nothing was left behind"
        ds.cleanup("0 seconds", delete_unverified=True)
        assert not ds.table.store.list("_lance_stream/staged_rows")
        assert not site.unreferenced_files(mode)
        assert ds.verify() == []
    site.check(*STREAMS)


def batch_messages(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a driver about batches."""
    return [line for line in lines if "batch" in line]


def test_executors_are_killed_at_each_step(site: Site) -> None:
    """Other executors try the same tasks ahead of time, so files of two attempts exist when one of
    them dies.
    """
    site.add_events(seed=22, num_bytes=ROW_BYTES)
    site.add_upserted("changes")
    deaths: list[str] = []
    steps = ("rows are staged", "keys are indexed", "ranges are written")
    for mode, step in zip(STREAMS, steps, strict=True):

        def kill(request: StoreRequest, mode: str = mode) -> None:
            worker: Worker | None = site.worker_of(request)
            assert worker is not None
            if worker.kill_executors():
                deaths.append(mode)

        at_step(site, mode, step, Act(kill, CutBefore()))
    driver = site.start_driver(jobs_of(site), SPECULATION)
    assert driver.wait(JOB_SECONDS) == 0, driver.output()[-5000:]
    assert sorted(deaths) == sorted(STREAMS), messages_of(driver)
    site.check(*STREAMS)
