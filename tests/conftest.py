"""One Spark session for a whole run, made when the first test asks for it; and small streams.

Examples of Hypothesis have no deadline: how busy the machine is says nothing about the code.
"""

import gc
import logging
import math
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings

from lance_stream.file.compression import compiled
from tests.java import set_options
from tests.sampling import ALL_CASES, places_of_some

settings.register_profile("without a deadline", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=40)
settings.load_profile("without a deadline")

pytest_plugins = ["tests.servers.fixtures", "tests.costs", "tests.memory"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--most-cases",
        type=int,
        metavar="N",
        help="of each test run so many cases at most: for a second round on other versions of the "
        "dependencies",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="of a test whose cases are all slow run the first, no slow case of others, of those "
        "marked with quick_cases some, nothing nightly; of a contract that several services keep, "
        "all on one of them, and on the others what each_service marks",
    )
    parser.addoption(
        "--spark-processes",
        type=int,
        default=1,
        metavar="N",
        help="so many of the processes of -n run the tests with Spark, with one session each",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_quick = config.getoption("--quick") and not ALL_CASES
    set_options(is_quick)
    if is_quick:
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without the garbage collector, and spare it what lives as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests and cases; with ALL_CASES=1 it is all of them."""
    is_quick = config.getoption("--quick") and not ALL_CASES
    most = config.getoption("--most-cases")
    with_cluster = "cluster" in config.getoption("markexpr")
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: dict[pytest.Item, None] = {}
    for name, cases in tests.items():
        left = _some(cases, "some_cases", name)
        if not with_cluster:
            left = [each for each in left if not _has(each, "cluster")]
        if is_quick:
            left = [each for each in left if not (_has(each, "nightly") or _is_repeated(each))]
            left = [each for each in left if not _has(each, "slow")] or left[:1]
            left = _some(left, "quick_cases", name)
        if left and most is not None and not ALL_CASES:
            left = _one_in(math.ceil(len(left) / most), left, name)
        chosen.update(dict.fromkeys(left))
    _share_sessions(list(chosen), config.getoption("--spark-processes"))
    left_out = [each for each in items if each not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if each in chosen]


def _some(cases: list[pytest.Item], marker: str, seed: str) -> list[pytest.Item]:
    """Return those of a test's cases that stand for all, if it has such a mark."""
    mark = cases[0].get_closest_marker(marker) if cases else None
    return cases if mark is None else _one_in(mark.kwargs["one_in"], cases, seed)


def _one_in(number: int, cases: list[pytest.Item], seed: str) -> list[pytest.Item]:
    places = places_of_some(list(map(_values, cases)), number, seed) if number > 1 else ()
    return [cases[place] for place in sorted(places)] or cases


def _share_sessions(items: list[pytest.Item], num_processes: int) -> None:
    """Let tests with Spark run in few processes, those of one file in one."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if _has(item, "spark"):
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    num_tests = [0] * num_processes
    for tests in sorted(files.values(), key=len, reverse=True):
        group = num_tests.index(min(num_tests))
        num_tests[group] += len(tests)
        for item in tests:
            item.add_marker(pytest.mark.xdist_group(f"spark-{group}"))


def _has(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


def _is_repeated(item: pytest.Item) -> bool:
    """Whether it is a test of a contract that another class keeps, and would say the same."""
    function: Any = item.function  # type: ignore[attr-defined]  # every test here is a function
    is_of_contract = function.__module__.startswith("tests.contracts.")
    return is_of_contract and _has(item, "repeats_contract") and not _has(item, "each_service")


def _values(item: pytest.Item) -> set[tuple[str, Hashable]]:
    """Return the parameters of a case: each one's value if it is plain, or else its place."""
    case = getattr(item, "callspec", None)
    return {
        (name, value if isinstance(value, str | int | None) else f"place {case.indices[name]}")
        for name, value in (case.params.items() if case else ())
    }


_CONF_DIR = Path(__file__).parent / "spark" / "conf"


@pytest.fixture(scope="session", autouse=True)
def no_compiled_loops() -> Iterator[None]:
    """Load none: whether a process has worked enough for them must not decide about a test."""
    with compiled.loops.replaced(None):
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A quiet local session of two cores, in a zone that is not UTC and no whole hour from it."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_CONF_DIR"] = str(_CONF_DIR)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # 10 kB of JSON an error
    session = (
        SparkSession.builder.master("local[2]")
        .appName("lance-stream tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Asia/Kolkata")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


class FileStream:
    """A stream of parquet files, one a micro-batch, and the query that reads it.

    Args:
        spark: The session.
        folder: Where files and checkpoints lie.
    """

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.files = folder / "files"
        self.files.mkdir()
        self.checkpoints = folder / "checkpoints"
        self.schema: Any = None

    def add(self, rows: pa.Table) -> None:
        """Let a file arrive."""
        number = len(list(self.files.iterdir()))
        path = self.files / f"{number:05}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(rows, hidden)
        os.utime(hidden, (number, number))  # Spark takes files in the order of their times
        hidden.rename(path)
        if self.schema is None:
            self.schema = self.spark.read.parquet(str(path)).schema

    def read(self) -> Any:
        """Return the stream of the files, one a micro-batch."""
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.files))

    def start(
        self, sink: Callable[[Any, int], None], checkpoint: str = "main", df: Any = None
    ) -> Any:
        """Start a query that gives each file to a function, and ends when all are read.

        Args:
            sink: The function.
            checkpoint: Names the checkpoint.
            df: What is made of `read()`, written in output mode "complete"; None for itself.
        """
        rows, output_mode = (self.read(), "append") if df is None else (df, "complete")
        return (
            rows.writeStream.foreachBatch(sink)
            .outputMode(output_mode)
            .option("checkpointLocation", str(self.checkpoints / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(
        self, sink: Callable[[Any, int], None], checkpoint: str = "main", df: Any = None
    ) -> str:
        """Run such a query to its end, and return its id."""
        query = self.start(sink, checkpoint, df)
        query.awaitTermination()
        return str(query.id)

    def forget_newest_commit(self, checkpoint: str = "main") -> int:
        """Make Spark believe that the last batch was not done; return its number."""
        commits = self.checkpoints / checkpoint / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)
        return newest


@pytest.fixture
def file_stream(spark: Any, tmp_path: Path) -> FileStream:
    """A stream of files that is still empty."""
    return FileStream(spark, tmp_path)


@pytest.fixture(scope="session")
def pyspark_has_read_limits() -> bool:
    """Whether PySpark tells a source where a batch starts, and how much it may take."""
    import pyspark

    return tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
