"""Random histories of stateful streaming queries that die and restart from their checkpoints.

    python -m tests.faults.stateful_queries --minutes 10 --seed 1

A history is one query (`KINDS`: stateless, grouped, deduplicated, joined, or with custom state)
into one table, in the matching mode of the sink, with one of Spark's state stores (`STORES`). In
each step files arrive, and the query runs until it has read them all. It dies meanwhile, or loses a
part of its checkpoint (`FAULTS`):

    before the sink       foreachBatch fails before it calls the sink
    rows computed         the same after the rows were computed, so that the state is stored
    after the sink        foreachBatch fails after our commit
    commit lost           the newest entry of the checkpoint's commit log is lost
    offsets lost          also the newest entry of the offset log: Spark replans the batch, with
                          files that have arrived since
    older copy            the checkpoint is restored from a copy, and Spark may read more files at
                          once than before
    process killed        another process runs the query, and it and its JVM get SIGKILL at one of
                          the first three moments

A query that dies forgets the state stores of its process. If one of our errors ends it, the remedy
in its message is followed. After each step the table is compared with the result over all files,
computed without Spark: each row once.

There is one exception, which the sink reports: if the plan is nondeterministic, a batch that Spark
planned again is skipped, and `last_commit.rows_differ` is true.

The kit of random lives (`tests.histories`) cannot check this, because the faults are in Spark's
state stores and checkpoints.

The seed determines everything but the names of files.
"""

import datetime
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lance_stream import open_dataset
from lance_stream.errors import NotFoundError
from lance_stream.spark import lance_sink
from lance_stream.spark.sink.reports import SinkCommit
from tests import seeded_runs as histories
from tests.faults.killed_processes import TESTS
from tests.remedies import follow

STEPS: Final = 5
SCHEMA: Final = "id bigint, k bigint, at timestamp"
START: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WINDOW: Final = datetime.timedelta(minutes=10)

Row = tuple[Any, ...]
File = list[tuple[int, int, datetime.datetime]]


class Killed(Exception):  # noqa: N818  # it is no error
    """The query dies here."""


@dataclass(frozen=True)
class Kind:
    """A kind of query.

    Attributes:
        build: Makes it of the streams of the files.
        expected: Its result over files, as sorted rows.
        output_mode: Of the query.
        sink: Arguments of the sink.
        is_deterministic: Whether its plan returns the same rows each time.
        stores: The state stores that it can have.
    """

    build: Callable[[Any], Any]
    expected: Callable[[list[File]], Iterable[Row]]
    output_mode: str = "append"
    sink: Mapping[str, Any] = field(default_factory=dict)
    is_deterministic: bool = True
    stores: tuple[str, ...] = ("hdfs", "rocksdb", "rocksdb 2")


def _all(files: list[File]) -> File:
    return [row for file in files for row in file]


def _counts(files: list[File]) -> Iterable[Row]:
    counts = Counter(k for _, k, _ in _all(files))
    sums = Counter[int]()
    for number, k, _ in _all(files):
        sums[k] += number
    return [(k, counts[k], sums[k]) for k in counts]


def _windows(files: list[File]) -> Iterable[Row]:
    """Return the windows that are final: those that end a window before the newest time."""
    times = [at for _, _, at in _all(files)]
    counts = Counter((at - START) // WINDOW for at in times)
    return [(n, count) for n, count in counts.items() if START + (n + 2) * WINDOW <= max(times)]


def _pairs(files: list[File]) -> Iterable[Row]:
    counts = Counter(number for number, _, _ in _all(files))
    evens = {number for number in counts if number % 2 == 0}
    return [
        (number, number + 1)
        for number in evens
        for _ in range(counts[number] * counts.get(number + 1, 0))
    ]


def _count(rows: Any) -> Any:
    return rows.groupBy("k").agg({"*": "count", "id": "sum"}).toDF("k", "n", "total")


def _window_counts(rows: Any) -> Any:
    from pyspark.sql import functions

    minutes = f"{WINDOW // datetime.timedelta(minutes=1)} minutes"
    window = functions.window("at", minutes)
    counts = rows.withWatermark("at", minutes).groupBy(window).count()
    start = functions.unix_seconds("window.start") - int(START.timestamp())
    number = (start / int(WINDOW.total_seconds())).cast("bigint")
    return counts.select(number.alias("n"), "count")


def _self_join(rows: Any) -> Any:
    odds = rows.filter("id % 2 = 1").selectExpr("id AS odd")
    return rows.filter("id % 2 = 0").join(odds, rows.id + 1 == odds.odd).select("id", "odd")


def _without_padding(rows: Any) -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class Once(StatefulProcessor):
        """Gives an id when it comes for the first time."""

        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "n bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002  # Spark's names
            import pandas as pd

            for _ in rows:
                pass
            if not self.seen.exists():
                self.seen.update((1,))
                yield pd.DataFrame({"id": [key[0]]})

        def close(self) -> None:
            pass

    return rows.groupBy("id").transformWithStateInPandas(Once(), "id bigint", "update", "none")


KINDS: Final[dict[str, Kind]] = {
    "rows": Kind(
        lambda rows: rows.select("id", "k"),
        lambda files: [row[:2] for row in _all(files)],
        stores=("hdfs",),
    ),
    "groups, changed": Kind(_count, _counts, "update", {"mode": "upsert", "on": "k"}),
    "groups, all": Kind(_count, _counts, "complete", {"mode": "overwrite"}),
    "windows": Kind(_window_counts, _windows),
    "distinct rows": Kind(
        lambda rows: rows.select("id", "k").dropDuplicates(),
        lambda files: {row[:2] for row in _all(files)},
    ),
    "rows of distinct ids": Kind(
        lambda rows: rows.select("id", "k").dropDuplicates(["id"]),
        lambda files: {row[:2] for row in _all(files)},
        is_deterministic=False,
    ),
    "joined": Kind(_self_join, _pairs),
    "transformWithState": Kind(
        _without_padding,
        lambda files: {row[:1] for row in _all(files)},
        "update",
        is_deterministic=False,
        stores=("rocksdb", "rocksdb 2"),
    ),
}

_STATE: Final = "spark.sql.streaming.stateStore"
_PACKAGE: Final = "org.apache.spark.sql.execution.streaming.state"
STORES: Final[dict[str, dict[str, str]]] = {
    "hdfs": {
        f"{_STATE}.providerClass": f"{_PACKAGE}.HDFSBackedStateStoreProvider",
        f"{_STATE}.checkpointFormatVersion": "1",
    },
    "rocksdb": {
        f"{_STATE}.providerClass": f"{_PACKAGE}.RocksDBStateStoreProvider",
        f"{_STATE}.checkpointFormatVersion": "1",
    },
    "rocksdb 2": {
        f"{_STATE}.providerClass": f"{_PACKAGE}.RocksDBStateStoreProvider",
        f"{_STATE}.checkpointFormatVersion": "2",
    },
}

DEATHS: Final = ("before the sink", "rows computed", "after the sink")
LOSSES: Final = ("commit lost", "offsets lost", "older copy")
FAULTS: Final = (*DEATHS, *LOSSES)
PROCESS_KILLED: Final = "process killed"


@dataclass(frozen=True)
class Run:
    """A run of a query; a process gets it as JSON.

    Attributes:
        kind: One of `KINDS`.
        store: One of `STORES`.
        files: The folder where files arrive.
        files_per_batch: How many are taken at once.
        checkpoint: Where Spark keeps its own.
        uri: The table.
        death: The moment at which it dies, one of `DEATHS`, or empty.
        at_batch: The batch of this run at which it dies, from 0.
    """

    kind: str
    store: str
    files: str
    files_per_batch: int
    checkpoint: str
    uri: str
    death: str = ""
    at_batch: int = 0

    def start(
        self, spark: Any, die: Callable[[], None], on_commit: Callable[[SinkCommit], None]
    ) -> Any:
        """Start the query.

        Args:
            spark: The session.
            die: Called where the query is to die.
            on_commit: Called for each batch that the sink has taken in or skipped.
        """
        kind = KINDS[self.kind]
        sink = lance_sink(self.uri, **kind.sink)
        moments = itertools.chain(itertools.repeat("", self.at_batch), [self.death])

        def put(df: Any, batch_id: int) -> None:
            moment = next(moments, "")
            if moment == "rows computed":
                df.collect()
            if moment in ("before the sink", "rows computed"):
                die()
            sink(df, batch_id)
            assert sink.last_commit is not None
            on_commit(sink.last_commit)
            if moment == "after the sink":
                die()

        for name, value in STORES[self.store].items():
            spark.conf.set(name, value)
        reader = spark.readStream.schema(SCHEMA)
        rows = reader.option("maxFilesPerTrigger", self.files_per_batch).parquet(self.files)
        writer = kind.build(rows).writeStream.foreachBatch(put)
        writer = writer.outputMode(kind.output_mode).trigger(availableNow=True)
        return writer.option("checkpointLocation", self.checkpoint).start()


def run_until_killed(run: str) -> int:
    """Be the process of a run that gets SIGKILL, with its JVM; it ends by itself if it does not."""

    def die() -> None:
        os.killpg(0, signal.SIGKILL)
        time.sleep(60)

    Run(**json.loads(run)).start(session(), die, lambda _: None).awaitTermination()
    return 0


class History:
    """A query and its table.

    Args:
        spark: The session.
        folder: Where files, checkpoints and the table lie.
        kind: One of `KINDS`.
        store: One of `STORES`.
        dice: Settle what happens.
    """

    def __init__(self, spark: Any, folder: Path, kind: str, store: str, dice: random.Random):
        self.spark, self.dice, self.kind, self.store = spark, dice, KINDS[kind], store
        self.kind_name = kind
        self.arriving, self.checkpoint = folder / "files", folder / "checkpoint"
        self.copy, self.newest = folder / "copy", folder / "newest"
        self.uri = str(folder / "table")
        self.arriving.mkdir(parents=True)
        self.files: list[File] = []
        self.files_per_batch = 1
        self.has_skipped_others = False
        self.done: Counter[str] = Counter()

    def step(self, fault: str) -> None:
        """Let files arrive, and the query run until it has read them, with a fault on its way."""
        self.add_files(self.dice.choice((2, 3)))
        if fault in DEATHS:
            self.run(fault, self.dice.randrange(2))
        elif fault == PROCESS_KILLED:
            self.kill_a_process()
        else:
            self.run()
            self.check()
            self.damage_checkpoint(fault)
        if self.dice.random() < 0.5 or fault == "offsets lost":
            self.add_files(1)
        self.done[fault] += 1
        for _ in range(6):
            if self.run():
                break
        else:
            raise AssertionError("remedies of errors did not help")
        self.check()

    def add_files(self, count: int) -> None:
        """Let files arrive; one row of each has come before."""
        for _ in range(count):
            number = len(self.files)
            file = [self._row(4 * number + index, number) for index in range(4)]
            if self.files:
                file.append(self.dice.choice(self.dice.choice(self.files[-2:])[:4]))
            columns = zip(*file, strict=True)
            types = (pa.int64(), pa.int64(), pa.timestamp("us", "UTC"))
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            path = self.arriving / f"{number:05}.parquet"
            hidden = path.with_name(f".{path.name}")
            pq.write_table(pa.table(arrays, names=["id", "k", "at"]), hidden)
            os.utime(hidden, (number, number))  # Spark takes files in the order of their times
            hidden.rename(path)
            self.files.append(file)

    def _row(self, number: int, file: int) -> tuple[int, int, datetime.datetime]:
        """Return a row; when it comes again within two files it is not late."""
        return number, self.dice.randrange(5), START + file * WINDOW

    def run(self, death: str = "", at_batch: int = 0) -> bool:
        """Run the query until all is read, or it ends; follow the remedy of an error of ours.

        Returns:
            Whether all was read.
        """
        query = self.next_run(death, at_batch).start(self.spark, self._die, self._note)
        try:
            query.awaitTermination()
        except Exception as error:
            self.forget_state()
            self.follow(str(error))
            return False
        return True

    def next_run(self, death: str = "", at_batch: int = 0) -> Run:
        return Run(
            self.kind_name,
            self.store,
            str(self.arriving),
            self.files_per_batch,
            str(self.checkpoint),
            self.uri,
            death,
            at_batch,
        )

    def kill_a_process(self) -> None:
        """Let a process run the query, and die at one of the moments, with its JVM."""
        run = self.next_run(self.dice.choice(DEATHS), self.dice.randrange(2))
        self.forget_state()
        command = [sys.executable, "-m", "tests.faults.stateful_queries", "--until-killed"]
        process = subprocess.run(
            [*command, json.dumps(asdict(run))],
            cwd=TESTS.parent,
            capture_output=True,
            start_new_session=True,  # SIGKILL is for its group
            timeout=240,
            check=False,
        )
        if process.returncode:
            assert process.returncode == -signal.SIGKILL, process.stderr.decode()[-3000:]
            self.done["processes killed"] += 1

    def _die(self) -> None:
        raise Killed

    def _note(self, commit: SinkCommit) -> None:
        self.done["batches"] += 1
        self.done["replays"] += commit.skipped
        if commit.rows_differ:
            assert not self.kind.is_deterministic
            self.done["skipped, with other rows"] += 1
            self.has_skipped_others = True

    def forget_state(self) -> None:
        """Forget the state stores of this process, as if it had died."""
        self.spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()

    def follow(self, message: str) -> None:
        """Do what an error says; nothing if the query was killed."""
        if "Killed" in message:
            return
        if "have arrived under the same batch id" in message:
            # as the error says, rows of these modes are not deleted
            follow(message, deletes=self.kind.sink.get("mode") not in ("upsert", "overwrite"))
            self.done["planned again"] += 1
            return
        if "Restore the newest checkpoint" in message:
            assert self.newest.exists(), message
            _replace(self.checkpoint, self.newest)
            self.done["put the newest back"] += 1
            return
        raise AssertionError(message)

    def damage_checkpoint(self, fault: str) -> None:
        """Remove a part of the checkpoint, or put an older copy in its place."""
        self.forget_state()
        if not _entries(self.checkpoint / "offsets"):
            return
        if fault == "older copy":
            if self.copy.exists():
                _replace(self.newest, self.checkpoint)
                _replace(self.checkpoint, self.copy)
                self.files_per_batch = self.dice.choice((1, 1, 2))
            _replace(self.copy, self.checkpoint)
            return
        newest = max(_entries(self.checkpoint / "offsets"))
        if fault == "offsets lost" and not newest:
            return  # Spark itself refuses state beside an empty log of offsets
        for log in ("commits", "offsets")[: 1 + (fault == "offsets lost")]:
            for name in (str(newest), f".{newest}.crc"):
                (self.checkpoint / log / name).unlink(missing_ok=True)

    def check(self) -> None:
        """Hold the table against the result over all files."""
        if self.has_skipped_others:  # as the sink said
            return
        try:
            table = open_dataset(self.uri)
        except NotFoundError:
            rows = []
        else:
            assert table.verify() == []
            columns = table.to_table().to_pydict().values()
            rows = sorted(zip(*columns, strict=True))
        assert rows == sorted(self.kind.expected(self.files)), self.done


def _entries(log: Path) -> list[int]:
    return [int(path.name) for path in log.iterdir() if path.name.isdigit()] if log.is_dir() else []


def _replace(target: Path, source: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def run_history(
    spark: Any, folder: Path, kind: str, store: str, seed: int, faults: Iterable[str] | None = None
) -> Counter[str]:
    """Play one history.

    Args:
        spark: The session; its settings of state stores are put back.
        folder: Where it is played.
        kind: One of `KINDS`.
        store: One of `STORES`.
        seed: Settles what happens.
        faults: One for each step; by default they are drawn.

    Returns:
        How often what happened.
    """
    dice = random.Random(f"{kind} {store} {seed}")
    history = History(spark, folder, kind, store, dice)
    drawn = [dice.choice(FAULTS) for _ in range(STEPS)] if faults is None else list(faults)
    try:
        for fault in drawn:
            history.step(fault)
    except BaseException as error:
        error.add_note(f"in the history of {kind!r} on {store!r}, seed {seed}: {drawn}")
        raise
    finally:
        for name in STORES[store]:
            spark.conf.unset(name)
    return history.done


def session() -> Any:
    """Return a quick Spark session."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def play(seed: int, num_steps: int) -> Counter[str]:
    """Play a history of each kind of query with one of its state stores."""
    counts, dice = Counter[str](), random.Random(seed)
    for kind, query_kind in KINDS.items():
        drawn = [dice.choice((*FAULTS, PROCESS_KILLED)) for _ in range(num_steps)]
        with tempfile.TemporaryDirectory() as folder:
            store = dice.choice(query_kind.stores)
            counts += run_history(session(), Path(folder), kind, store, seed, drawn)
        counts["histories of a query"] += 1
    return counts


if __name__ == "__main__":
    sys.exit(
        run_until_killed(*sys.argv[2:])
        if sys.argv[1:2] == ["--until-killed"]
        else histories.main(play, steps=STEPS, what="faults")
    )
