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
from tests.contracts.shared_tables import SharedTable
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
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SharedTable:
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
    return SharedTable(uri, options)


_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [publishing_process.__name__, "lance_stream.storage.engine.requests", "psycopg"]
)


class Writing:
    """A process that appends a row, and stops at a step; it is killed at the end of the block."""

    def __init__(self, table: SharedTable, step: int, row: int) -> None:
        self._hears, says = _PROCESSES.Pipe(duplex=False)
        self.process = _PROCESSES.Process(
            target=publishing_process.append_and_stop,
            args=(says, table.uri, table.options, step, row),
        )
        self.process.start()
        says.close()

    def next_message(self) -> str:
        """Wait for the next message of the process."""
        assert self._hears.poll(120), "it says nothing"
        return str(self._hears.recv())

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._hears.close()


def kill_at(table: SharedTable, step: int, row: int) -> None:
    with Writing(table, step, row) as writing:
        assert writing.next_message() == "stopped"


def ids_of(table: SharedTable) -> list[int]:
    return sorted(table.ours().to_table().column("id").to_pylist())


def in_directory(table: SharedTable) -> list[int]:
    """What pylance reads without the manifest store."""
    uri = table.uri.replace("s3+ddb", "s3").partition("?")[0]
    options = {name: value for name, value in table.options.items() if name != "manifest_store"}
    return sorted(lance.dataset(uri, storage_options=options).to_table().column("id").to_pylist())


def log_of(table: SharedTable) -> ExternalLog:
    log = open_log(table.uri, table.options)
    assert isinstance(log, ExternalLog)
    return log


def check_is_finished(table: SharedTable, num_unfinished: int = 0) -> None:
    log = log_of(table)
    for manifest in log.manifests.items(log.base_uri):
        assert manifest.path == f"{log.base_uri}/{log.manifest_path(manifest.version)}"
    names = [name for name in log.store.list_names("_versions") if ".manifest-" in name]
    assert len(names) == num_unfinished


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("step", range(1, NUM_STEPS + 2))
@pytest.mark.essential
def test_killed_writers_leave_all_or_nothing(table: SharedTable, step: int) -> None:
    """A version is published by its item, so the directory may lag behind by
    one version at most.
    """
    kill_at(table, step, row=1)
    expected = [1] if step > 2 else []
    assert in_directory(table) == ([1] if step > 3 else [])  # up to one version behind
    assert ids_of(table) == expected
    assert in_directory(table) == expected
    table.we_append(pa.table({"id": [2]}))
    assert ids_of(table) == in_directory(table) == [*expected, 2]
    assert table.ours().version == 1 + len(expected) + 1
    check_is_finished(table, num_unfinished=1 if step in (2, 5) else 0)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.some_cases(one_in=2)
def test_concurrent_readers_finish_killed_commits(table: SharedTable) -> None:
    """Several readers complete the same commit at once and must not disturb each other."""
    for row in range(1, 4 if ALL_CASES else 2):
        kill_at(table, 3, row)
        start, seen = threading.Barrier(8), []

        def read(start: threading.Barrier = start, seen: list[list[int]] = seen) -> None:
            start.wait()
            seen.append(ids_of(table))

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for worker in threads:
            worker.join()
        assert seen == [list(range(1, row + 1))] * 8
        check_is_finished(table)


@pytest.mark.slow
@pytest.mark.some_cases(one_in=3)
def test_repeatedly_killed_writers_lose_nothing(table: SharedTable) -> None:
    """Two processes write at once, and one of them is killed at a step while
    the other continues.
    """
    published = set()
    for number in range(1, NUM_STEPS + 1):
        with Writing(table, number, row=number) as killed:
            assert killed.next_message() == "stopped"
            with Writing(table, 0, row=100 + number) as other:
                assert other.next_message() == "done"
        published |= {100 + number, *([number] if number > 2 else [])}
    assert set(ids_of(table)) == set(in_directory(table)) == published
    assert table.ours().version == 1 + len(published) == 1 + len(ids_of(table))


@pytest.mark.slow
@pytest.mark.some_cases(one_in=3)
def test_racing_processes_publish_once_each(table: SharedTable) -> None:
    """Threads share a connection, while separate processes race in the database itself."""
    with ExitStack() as ends:
        writers = [ends.enter_context(Writing(table, 0, row)) for row in range(NUM_WRITERS)]
        assert [writer.next_message() for writer in writers] == ["done"] * NUM_WRITERS
    assert ids_of(table) == list(range(NUM_WRITERS))
    assert table.ours().version == 1 + NUM_WRITERS
    check_is_finished(table)
