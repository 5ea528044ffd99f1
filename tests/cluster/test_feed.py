"""The change feed on a cluster, as a batch and as a stream, before and after a compaction."""

import pytest

from tests.cluster.drivers import Site
from tests.cluster.events import after
from tests.cluster.jobs import stream_job
from tests.cluster.standalone import Worker

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

RANGES = [[1, 2], [2, 4], [3, 3], [1, 4]]


def test_feeds_are_differences_of_snapshots(site: Site) -> None:
    """Executors are killed while the feed is read, and neither a repeated task nor a compaction
    may add or lose a change.
    """
    site.add_events(seed=7)
    table = f"{site.folder}/upsert"
    look = {"kind": "feed", "table": table, "ranges": RANGES}
    site.run([stream_job("upsert", site.folder)])
    site.proxy.clear()
    deaths: list[int] = []

    def kill(worker: Worker) -> None:
        deaths.append(worker.kill_executors())

    for at in (2, 12):
        site.at_data("upsert", at, kill)
    messages = site.run(
        [
            {**look, "name": "before"},
            {"kind": "compact", "table": table, "target_rows": 60},
            {**look, "name": "after"},
        ]
    )
    assert len(deaths) == 2
    assert all(deaths)
    site.check("upsert")
    site.check_only_workers_read()
    (compacted,) = [message["version"] for message in messages if "compacted" in message]
    assert compacted > len(site.batches), "there was something to compact"
    ranges = [message for message in messages if "feed" in message]
    assert len(ranges) == 2 * len(RANGES)
    for span in ranges:
        before = site.snapshot("upsert", span["first"] - 1)
        assert after(before, span["rows"]) == site.snapshot("upsert", span["last"]), span["first"]
    for row in messages:
        if "streamed" in row:
            assert after({}, row["rows"]) == site.snapshot("upsert", compacted)
