"""Every mode of the sink and the format on a cluster without a shared directory."""

import pytest

from tests.cluster.drivers import Site
from tests.cluster.jobs import MODES, stream_job

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]


def test_tasks_use_their_own_machines_wheel(site: Site) -> None:
    """If tasks could see the driver's files, the cluster tests would prove nothing."""
    hidden = [str(site.driver.folder), __file__]
    messages = site.run([{"kind": "inspect_tasks", "num_tasks": 12, "paths": hidden}])
    (views,) = [message["views"] for message in messages if "views" in message]
    folders = {str(worker.machine.folder) for worker in site.cluster.workers.values()}
    used = set()
    for view in views:
        (folder,) = {folder for folder in folders if view["profile"].startswith(f"{folder}/")}
        used.add(folder)
        for path in (view["python"], view["package"], view["here"]):
            assert path.startswith(f"{folder}/")
        assert view["paths"] == []
    assert used == folders, "tasks ran on all machines"


def test_every_mode_applies_each_row_once(site: Site) -> None:
    """Without a shared directory every mode has to pass data through the store or through Spark."""
    site.add_events(seed=1)
    site.run([stream_job(mode, site.folder) for mode in MODES])
    site.check()
    # The format's upserts are applied by one process of the driver's machine.
    site.check_only_workers_read("format_upsert")
