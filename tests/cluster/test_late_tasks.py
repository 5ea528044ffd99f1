"""Tasks that end after others have done their work: slow ones, and those of a worker cut off."""

import threading

import pytest

from tests.cluster.drivers import Site
from tests.cluster.jobs import stream_job
from tests.cluster.machines import wait_until
from tests.cluster.meetings import PATIENT, SECONDS
from tests.cluster.standalone import Worker
from tests.servers.store_faults import Act, CutBefore
from tests.servers.store_requests import StoreRequest

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "3s",
    "spark.speculation.interval": "500ms",
    "spark.speculation.task.duration.threshold": "5s",  # for stages of one task
}
LOSES_WORKERS_SOON = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
}
SHARED = {"kind": "share_work"}
ARGUMENTS = {"storage_options": PATIENT, "compact": None}


def test_slow_tasks_are_attempted_twice(site: Site) -> None:
    """The file of the slow attempt gets to the store once the other attempt is committed."""
    site.add_events(seed=13)
    modes = ("append", "upsert")
    late = {mode: delay_first_file(site, mode) for mode in modes}
    site.run([SHARED, *(stream_job(mode, site.folder, **ARGUMENTS) for mode in modes)], SPECULATION)
    site.proxy.quiet(60)
    for mode in modes:
        (request,) = late[mode]
        assert request.status == 200, "it was late, and is there"
        assert request.key in [site.key(f"{mode}/{file}") for file in site.unreferenced_files(mode)]
        assert site.version_of(mode) == len(site.batches)
        assert site.open(mode).verify(deep=True) == []
        check_cleanup_removes_all(site, mode)
    site.check(*modes)


def test_a_zombie_ends_its_task_late(site: Site) -> None:
    """The task is repeated elsewhere, and the zombie wakes up in the next batch and writes its
    file.
    """
    site.add_events(seed=14)
    zombies: list[Worker] = []
    woken: list[str] = []

    def stop(worker: Worker) -> None:
        worker.stop()
        zombies.append(worker)

    def wake(request: StoreRequest) -> None:
        (zombie,) = zombies
        woken.append(request.key)
        zombie.resume_python()
        wait_until(lambda: late_files(site, zombie, request), SECONDS, site.proxy.story)
        zombie.resume()

    site.at_data("append", 4, stop, CutBefore())
    site.at_commit("append", 3, Act(wake))
    try:
        site.run([stream_job("append", site.folder, **ARGUMENTS)], LOSES_WORKERS_SOON)
    finally:
        for zombie in zombies:
            zombie.kill()  # it would come back to the master at a time of its own
    assert len(woken) == 1
    assert site.unreferenced_files("append"), "of the zombie"
    assert site.version_of("append") == len(site.batches)
    assert site.open("append").verify(deep=True) == []
    check_cleanup_removes_all(site, "append")
    site.check("append")


def delay_first_file(site: Site, table: str) -> list[StoreRequest]:
    """Delay a table's first data file until its first commit; return the delayed request."""
    is_committed = threading.Event()
    waiting_requests: list[StoreRequest] = []

    def hold(request: StoreRequest) -> None:
        waiting_requests.append(request)
        assert is_committed.wait(SECONDS), "no other attempt completed the task"

    site.proxy.add(Act(hold), key=site.key(f"{table}/data/"), matches=site.is_from_worker("PUT"))
    site.at_commit(table, 1, Act(lambda _: is_committed.set()))
    return waiting_requests


def late_files(site: Site, worker: Worker, after: StoreRequest) -> list[StoreRequest]:
    """Return the files that a worker has written after a request."""
    later = [request for request in site.proxy.seen(key="/data/") if request.number > after.number]
    return [
        request
        for request in later
        if request.method == "PUT" and request.status == 200 and site.worker_of(request) is worker
    ]


def check_cleanup_removes_all(site: Site, table: str) -> None:
    """Check that a cleanup removes all files that no version references."""
    site.open(table).cleanup(retain_versions=100, delete_unverified=True)
    assert site.unreferenced_files(table) == []
