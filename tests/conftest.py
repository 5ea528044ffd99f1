"""One Spark session for a whole run, made when the first test asks for it; and small streams."""

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lance_stream.file.compression import compiled

pytest_plugins = ["tests.selection", "tests.servers.fixtures", "tests.costs", "tests.memory"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without the garbage collector, and spare it what lives as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


_CONF_DIR = Path(__file__).parent / "spark" / "conf"


@pytest.fixture(scope="session", autouse=True)
def no_compiled_loops() -> Iterator[None]:
    """Use none, nor in processes that tests start: whether numba is installed decides no test."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # numba, imported by now, reads it at its import
    with compiled.loops.replaced(None):
        yield


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
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
    has_sources = importlib.util.find_spec("pyspark.sql.datasource") is not None
    if request.config.getoption("--costs") and has_sources:
        _warm_up(session, tmp_path_factory.mktemp("warm-up"))
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


def _warm_up(session: Any, folder: Path) -> None:
    """Do once what most tests do, so that loading it is not the cost of the test that is first.

    Args:
        session: The session.
        folder: An empty folder.
    """
    from lance_stream.spark import register

    register(session)
    table, checkpoint = str(folder / "table"), str(folder / "checkpoint")
    session.range(2).write.format("lance").mode("append").save(table)
    session.read.format("lance").load(table).collect()
    query = (
        session.readStream.format("lance")
        .load(table)
        .writeStream.foreachBatch(
            lambda df, _: df.mapInArrow(lambda batches: batches, df.schema).toArrow()
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


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
