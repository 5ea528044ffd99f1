"""The package delivered with a job, to workers that do not have it."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cluster.drivers import Site, driver_settings, finish, start_program
from tests.cluster.environments import packed_environment
from tests.cluster.jobs import stream_job
from tests.cluster.machines import PLAIN_WORKERS, Machine
from tests.cluster.standalone import Cluster, started
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

MODES = ("append", "upsert", "format_append", "format_upsert")
RANGES = [[1, 2], [1, 4]]


@pytest.fixture(scope="module")
def plain_cluster(machines: FaultProxy) -> Iterator[Cluster]:
    """A cluster whose workers have what this package needs, but not the package."""
    with ExitStack() as stack:
        workers = [
            Machine(name, without=["lance-stream"], endpoint=machines.url) for name in PLAIN_WORKERS
        ]
        yield stack.enter_context(
            started("plain-master", [stack.enter_context(worker) for worker in workers])
        )


@pytest.fixture
def plain_site(
    plain_cluster: Cluster, driver: Machine, proxy: FaultProxy, s3_bucket: Bucket
) -> Iterator[Site]:
    """That cluster, and a table of events in an empty bucket."""
    proxy.clear()
    site = Site(plain_cluster, driver, proxy, s3_bucket)
    site.add_events(seed=17)
    yield site
    proxy.clear()


def test_workers_import_packages_from_zips(plain_site: Site) -> None:
    """`--py-files` delivers only the package's folder, and its dependencies are installed on the
    workers.
    """
    package = plain_site.driver.site_packages / "lance_stream"
    archive = plain_site.driver.folder / "lance_stream"
    shutil.make_archive(str(archive), "zip", package.parent, package.name)
    views = check_all(plain_site, ["--py-files", f"{archive}.zip"], {})
    for view in views:
        assert "/lance_stream.zip/lance_stream/" in view["package"]


def test_workers_run_in_an_archived_environment(plain_site: Site) -> None:
    """The driver's environment has the same relative path there."""
    archive = shutil.copy(packed_environment("s3"), plain_site.driver.folder)
    (plain_site.driver.folder / "environment").symlink_to("env")
    views = check_all(
        plain_site,
        ["--archives", f"{archive}#environment"],
        {"PYSPARK_PYTHON": "./environment/bin/python"},
    )
    for view in views:
        assert view["package"].startswith(f"{view['here']}/environment/lib/")


def test_missing_worker_packages_are_explained(plain_site: Site) -> None:
    """Where this package starts the tasks the error says so; where Spark reads a table, only
    Spark's error appears.
    """
    folder = plain_site.folder
    ours = [
        {"kind": "write", "table": f"{folder}/rows", "num_rows": 10},
        {"kind": "compact", "table": f"{folder}/events", "target_rows": 1000},
        {"kind": "cleanup", "table": f"{folder}/events", "retain_versions": 1},
    ]
    of_spark = [
        stream_job("append", folder),
        stream_job("format_append", folder),
        {"kind": "feed", "name": "feed", "table": f"{folder}/events", "ranges": [[1, 2]]},
    ]
    version = plain_site.version_of("events")
    attempts = [{"kind": "attempt", "job": job} for job in (*ours, *of_spark)]
    errors = [message for message in submit(plain_site, attempts, [], {}) if "error" in message]
    assert len(errors) == len(attempts)
    for error in errors[: len(ours)]:
        assert error["error"] == "InvalidInputError"
        assert error["text"].startswith("Spark's workers cannot import lance_stream. Set the work")
    for error in errors[len(ours) :]:
        assert "ModuleNotFoundError: No module named 'lance_stream'" in error["text"]
    assert plain_site.version_of("events") == version


def check_all(
    site: Site, options: Sequence[str], variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Check the results of streams and readers; return the environments of tasks."""
    upsert = f"{site.folder}/upsert"
    jobs = [
        {"kind": "inspect_tasks", "num_tasks": 6, "paths": []},
        *(stream_job(mode, site.folder) for mode in MODES),
        {"kind": "feed", "name": "feed", "table": upsert, "ranges": RANGES},
        {"kind": "compact", "table": upsert, "target_rows": 60},
        {"kind": "cleanup", "table": upsert, "retain_versions": 1},
    ]
    messages = submit(site, jobs, options, variables)
    site.check(*MODES)
    (views,) = [message["views"] for message in messages if "views" in message]
    for view in views:
        assert view["here"].startswith(tuple(map(str, folders_of(site)))), "it is a worker's"
    return views


def folders_of(site: Site) -> list[Any]:
    """Return the folders of the workers' machines."""
    return [worker.machine.folder for worker in site.cluster.workers.values()]


def submit(
    site: Site,
    jobs: Sequence[Mapping[str, Any]],
    options: Sequence[str],
    variables: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Run jobs by spark-submit, and return their messages."""
    command = [str(site.driver.spark_home / "bin" / "spark-submit"), *options]
    for item in driver_settings(site.cluster).items():
        command += ["--conf", "=".join(item)]
    program = {"conf": {}, "jobs": list(jobs)}
    return finish(start_program(site.driver, program, command, variables))
