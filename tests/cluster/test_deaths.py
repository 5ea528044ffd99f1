"""Workers of a cluster that end in the middle: each row is in each table once."""

import pytest

from tests.cluster.drivers import Site
from tests.cluster.jobs import stream_job
from tests.cluster.standalone import Worker
from tests.servers.store_faults import CutBefore

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]


def test_a_worker_is_lost_for_good(site: Site) -> None:
    site.add_events(seed=4)
    lost: list[Worker] = []

    def lose(worker: Worker) -> None:
        worker.lose()
        lost.append(worker)

    site.at_data("append", 4, lose)
    site.at_data("upsert", 4, lose, CutBefore())
    site.run([stream_job(mode, site.folder) for mode in ("append", "upsert")])
    assert len(lost) == 2
    assert all(each.is_lost() for each in lost)
    site.check("append", "upsert")
