"""Workers and executors that end in the middle of a batch: each row is in each table once."""

import pytest

from tests.cluster.drivers import Site
from tests.cluster.jobs import stream_job
from tests.cluster.standalone import Worker
from tests.servers.store_faults import CutBefore

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]


def test_killed_executors_lose_no_rows(site: Site) -> None:
    """Executors are killed before and after the store receives their file or sends their input."""
    site.add_events(seed=2)
    modes = ("append", "upsert")
    deaths: list[tuple[str, int]] = []
    for mode in modes:

        def kill_executors(worker: Worker, mode: str = mode) -> None:
            deaths.append((mode, worker.kill_executors()))

        def kill_python(worker: Worker, mode: str = mode) -> None:
            deaths.append((mode, worker.kill_python_workers()))

        site.at_data(mode, 1, kill_executors)
        site.at_data(mode, 3, kill_python, CutBefore())
        site.at_data(mode, 5, kill_executors, CutBefore())
    site.run([stream_job(mode, site.folder) for mode in modes])
    killed = {mode: [number for death, number in deaths if death == mode] for mode in modes}
    assert all(len(numbers) == 3 and all(numbers) for numbers in killed.values()), killed
    site.check(*modes)


def test_lost_workers_cost_no_rows(site: Site) -> None:
    """Spark has to repeat the tasks of a machine that never returns, along with the files that it
    has written.
    """
    site.add_events(seed=4)
    lost: list[Worker] = []

    def kill_worker(worker: Worker) -> None:
        worker.kill()
        lost.append(worker)

    site.at_data("append", 4, kill_worker)
    site.at_data("upsert", 4, kill_worker, CutBefore())
    site.run([stream_job(mode, site.folder) for mode in ("append", "upsert")])
    assert len(lost) == 2
    assert all(worker.is_lost() for worker in lost)
    site.check("append", "upsert")
