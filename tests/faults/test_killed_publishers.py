"""SIGKILL at each step of a commit through a manifest store, of processes that share a table."""

import threading
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.opening import open_log
from tests.contracts.shared_tables import Place
from tests.faults import publishing_process
from tests.sampling import ALL_CASES
from tests.servers.buckets import Bucket
from tests.servers.moto import DynamoTable

SCHEMA = pa.schema([pa.field("id", pa.int64())])
NUM_STEPS = 5
NUM_WRITERS = 16 if ALL_CASES else 6


@pytest.fixture(
    params=[
        "sqlite, on a local disk",
        pytest.param("postgresql, on a local disk", marks=pytest.mark.server("postgresql")),
        pytest.param("postgresql, on S3", marks=pytest.mark.server("postgresql", "moto")),
        pytest.param("dynamodb, on S3", marks=pytest.mark.server("moto")),
        pytest.param("dynamodb local, on S3", marks=pytest.mark.server("dynamodb_local", "moto")),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A table of version 1, without rows."""
    kind, _, where = request.param.partition(", on ")
    options: dict[str, str] = {}
    uri = str(tmp_path / "t")
    if where == "S3":
        bucket: Bucket = request.getfixturevalue("s3_bucket")
        options = dict(bucket.storage_options)
        uri = f"{bucket.uri}/dir/t"
    if kind == "sqlite":
        options["manifest_store"] = f"sqlite://{tmp_path}/m.db"
    elif kind == "postgresql":
        options["manifest_store"] = request.getfixturevalue("postgresql_url")
    else:
        fixture = "dynamodb_table" if kind == "dynamodb" else "dynamodb_local_table"
        table: DynamoTable = request.getfixturevalue(fixture)
        options |= table.storage_options
        uri = f"{uri.replace('s3:', 's3+ddb:')}?ddbTableName={table.name}"
    lance_stream.create_dataset(uri, SCHEMA, storage_options=options)
    return Place(uri, options)


_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [publishing_process.__name__, "lance_stream.storage.engine.requests", "psycopg"]
)


class Writing:
    """A process that appends a row, and stops at a step; it is killed at the end of the block."""

    def __init__(self, place: Place, step: int, row: int) -> None:
        self._hears, says = _PROCESSES.Pipe(duplex=False)
        self.process = _PROCESSES.Process(
            target=publishing_process.append_and_stop,
            args=(says, place.uri, place.options, step, row),
        )
        self.process.start()
        says.close()

    def said(self) -> str:
        """Return what it says next."""
        assert self._hears.poll(120), "it says nothing"
        return str(self._hears.recv())

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._hears.close()


def kill_at(place: Place, step: int, row: int) -> None:
    with Writing(place, step, row) as writing:
        assert writing.said() == "stopped"


def ids_of(place: Place) -> list[int]:
    return sorted(place.ours().to_table().column("id").to_pylist())


def in_directory(place: Place) -> list[int]:
    """What pylance reads without the manifest store."""
    uri = place.uri.replace("s3+ddb", "s3").partition("?")[0]
    options = {name: value for name, value in place.options.items() if name != "manifest_store"}
    return sorted(lance.dataset(uri, storage_options=options).to_table().column("id").to_pylist())


def log_of(place: Place) -> ExternalLog:
    log = open_log(place.uri, place.options)
    assert isinstance(log, ExternalLog)
    return log


def check_is_finished(place: Place, num_left: int = 0) -> None:
    log = log_of(place)
    for manifest in log.manifests.items(log.base_uri):
        assert manifest.path == f"{log.base_uri}/{log.manifest_path(manifest.version)}"
    names = [name for name in log.store.list_names("_versions") if ".manifest-" in name]
    assert len(names) == num_left


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("step", range(1, NUM_STEPS + 2))
@pytest.mark.essential
def test_killed_writers_leave_all_or_nothing(place: Place, step: int) -> None:
    """A version is published by its item, so the directory may lag behind by
    one version at most.
    """
    kill_at(place, step, row=1)
    expected = [1] if step > 2 else []
    assert in_directory(place) == ([1] if step > 3 else [])  # up to one version behind
    assert ids_of(place) == expected
    assert in_directory(place) == expected
    place.we_append(pa.table({"id": [2]}))
    assert ids_of(place) == in_directory(place) == [*expected, 2]
    assert place.ours().version == 1 + len(expected) + 1
    check_is_finished(place, num_left=1 if step in (2, 5) else 0)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.some_cases(one_in=2)
def test_concurrent_readers_finish_killed_commits(place: Place) -> None:
    """Several readers complete the same commit at once and must not disturb each other."""
    for row in range(1, 4 if ALL_CASES else 2):
        kill_at(place, 3, row)
        start, seen = threading.Barrier(8), []

        def read(start: threading.Barrier = start, seen: list[list[int]] = seen) -> None:
            start.wait()
            seen.append(ids_of(place))

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for worker in threads:
            worker.join()
        assert seen == [list(range(1, row + 1))] * 8
        check_is_finished(place)


@pytest.mark.slow
@pytest.mark.some_cases(one_in=3)
def test_repeatedly_killed_writers_lose_nothing(place: Place) -> None:
    """Two processes write at once, and one of them is killed at a step while
    the other continues.
    """
    stands = set()
    for number in range(1, NUM_STEPS + 1):
        with Writing(place, number, row=number) as killed:
            assert killed.said() == "stopped"
            with Writing(place, 0, row=100 + number) as other:
                assert other.said() == "done"
        stands |= {100 + number, *([number] if number > 2 else [])}
    assert set(ids_of(place)) == set(in_directory(place)) == stands
    assert place.ours().version == 1 + len(stands) == 1 + len(ids_of(place))


@pytest.mark.slow
@pytest.mark.some_cases(one_in=3)
def test_racing_processes_publish_once_each(place: Place) -> None:
    """Threads share a connection, while separate processes race in the database itself."""
    with ExitStack() as ends:
        writers = [ends.enter_context(Writing(place, 0, row)) for row in range(NUM_WRITERS)]
        assert [writer.said() for writer in writers] == ["done"] * NUM_WRITERS
    assert ids_of(place) == list(range(NUM_WRITERS))
    assert place.ours().version == 1 + NUM_WRITERS
    check_is_finished(place)
