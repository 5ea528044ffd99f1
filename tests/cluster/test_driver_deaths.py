"""Drivers that are killed in the middle of a batch and started again: each row is in once."""

from collections import Counter
from typing import Any

import pytest

from tests.cluster.drivers import Site, messages_of
from tests.cluster.jobs import stream_job
from tests.cluster.meetings import PATIENT, Meeting
from tests.servers.store_faults import CutBefore
from tests.servers.store_requests import StoreRequest

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

STREAMS = ("append", "upsert", "apply_changes")
MOMENTS = ("while files are written", "before the commit", "after the commit")
NUM_BATCHES = 6


def test_killed_drivers_leave_each_row_once(site: Site) -> None:
    """Three streams, one of which reads the feed of a table, run at once, so each kill meets each
    of them at another moment.
    """
    site.add_events(seed=11, num_batches=NUM_BATCHES)
    site.add_upserted("changes")
    arguments = {"storage_options": PATIENT, "compact": None}
    streams = [stream_job(mode, site.folder, **arguments) for mode in STREAMS[:2]]
    streams.append(stream_job(STREAMS[2], site.folder, "changes", **arguments))
    jobs = [{"kind": "read_together", "lines": [[stream] for stream in streams]}]
    committed = dict.fromkeys(STREAMS, 0)
    batches: list[dict[str, Any]] = []
    for turn in range(len(MOMENTS)):
        driver = site.start_driver(jobs)
        meeting = Meeting(len(STREAMS), driver.kill)
        for number, mode in enumerate(STREAMS):
            moment = MOMENTS[(turn + number) % len(MOMENTS)]
            wait_at_moment(site, mode, moment, meeting)
            committed[mode] += 2 if moment == "after the commit" else 1
        site.await_death(driver, meeting)
        assert {mode: site.version_of(mode) for mode in STREAMS} == committed
        batches += messages_of(driver)
    batches += site.run(jobs)
    site.check(*STREAMS)
    assert {mode: site.version_of(mode) for mode in STREAMS} == dict.fromkeys(STREAMS, NUM_BATCHES)
    repeated = Counter(
        batch["table"].rpartition("/")[2] for batch in batches if batch.get("skipped")
    )
    assert repeated == dict.fromkeys(STREAMS, 1), "batches that were committed as the driver died"


def wait_at_moment(site: Site, mode: str, moment: str, meeting: Meeting) -> None:
    """Make the second batch of a run wait for those of the other streams at a moment."""
    if moment == "before the commit":
        site.at_commit(mode, 2, meeting.fault(CutBefore()))
    elif moment == "after the commit":
        site.at_commit(mode, 2, meeting.fault())
    else:
        manifests = site.key(f"{mode}/_versions/")

        def is_of_second_batch(request: StoreRequest) -> bool:
            before = site.proxy.requests[: request.number]
            return request.method == "PUT" and any(
                request.kind == "put once" and manifests in request.key for request in before
            )

        fault = meeting.fault(CutBefore())
        site.proxy.add(fault, key=site.key(f"{mode}/data/"), matches=is_of_second_batch)
