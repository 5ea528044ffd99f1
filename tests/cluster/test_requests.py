"""What a batch costs at the store does not depend on how many executors share it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.drivers import Site, machine_of
from tests.cluster.jobs import stream_job

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

STREAMS = ("append", "upsert")
RANGES = [[1, 2], [1, 4]]
SLACK = 5
"""How many more requests an additional executor may cause: its process does not remember the ends
of files that another one has read."""


def test_requests_do_not_grow_with_executors(site: Site) -> None:
    """Three tasks write each batch, on one executor and on three."""
    counts = {number: requests_with(site, number) for number in (1, 3)}
    for number, by_machine in counts.items():
        workers = [name for name in by_machine if name != "driver"]
        assert len(workers) == number, "all executors had work"
    assert counts[3]["driver"] == counts[1]["driver"]
    one, three = (sum(map(Counter.total, counts[number].values())) for number in (1, 3))
    assert 0 < three <= one + 2 * SLACK, counts


def requests_with(site: Site, num_executors: int) -> dict[str, Counter[str]]:
    """Return the requests of each machine, by kind, for the same jobs with some executors."""
    new_site = replace(site, name=f"with-{num_executors}", batches=[])
    new_site.add_events(seed=15)
    site.proxy.clear()
    upsert = f"{new_site.folder}/upsert"
    jobs: list[dict[str, Any]] = [
        *(stream_job(mode, new_site.folder, compact=None) for mode in STREAMS),
        {"kind": "feed", "name": "feed", "table": upsert, "ranges": RANGES},
        {"kind": "compact", "table": upsert, "target_rows": 1000},
        {"kind": "cleanup", "table": upsert, "retain_versions": 1},
    ]
    new_site.run(jobs, {"spark.cores.max": str(num_executors)})
    new_site.check(*STREAMS)
    counts: dict[str, Counter[str]] = {}
    for request in site.proxy.seen():
        counts.setdefault(machine_of(request), Counter())[request.kind] += 1
    return counts
