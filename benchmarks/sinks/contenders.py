"""The contenders: a class for each sink, with the same verbs, as its users would write them.

`load` creates a new table from the rows of a batch; `append` adds rows to it; `upsert` updates the
rows whose ids exist and inserts the others; `feed` reads the changes of the last upsert. A verb
that a sink does not support is missing.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from unittest.mock import patch

import lance
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import lance_stream
from benchmarks.sinks.workload import SCHEMA, Sums
from lance_stream import ChangeStream
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.spark import LanceSink, lance_sink, read_changes, register
from lance_stream.spark.sink import batch_writing

MERGE = """
    MERGE INTO {table} AS stored USING batch ON stored.id = batch.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""


SINK_ARGUMENTS: dict[str, dict[str, Any]] = {
    "load": {"create_options": {"primary_key": ["id"]}},
    "append": {"create_options": {"primary_key": ["id"]}},
    "upsert": {"mode": "upsert", "on": ["id"]},
}
"""The arguments of our sink, by verb."""


class Contender:
    """A sink in the benchmark.

    Args:
        folder: The folder of its tables.

    Attributes:
        name: The name that is shown.
        verbs: The verbs that it supports.
        packages: Its packages, by Maven coordinates.
        extensions: Spark's SQL extensions that it needs.
        keeps_rows: Whether there is a table at the end.
    """

    name: ClassVar[str]
    verbs: ClassVar[tuple[str, ...]] = ("load", "append", "upsert")
    packages: ClassVar[tuple[str, ...]] = ()
    extensions: ClassVar[tuple[str, ...]] = ()
    keeps_rows: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_tables = 0

    @classmethod
    def settings(cls, folder: Path) -> Mapping[str, str]:
        """Return the session settings that it needs, besides packages and extensions."""
        del folder
        return {}

    @property
    def target(self) -> str:
        """The path of the newest table."""
        return str(self.folder / f"{self.name.replace(' ', '-')}-{self.num_tables}")

    def begin_table(self, spark: SparkSession) -> None:
        """Continue with a new table; not timed. Sinks that create tables themselves do so later."""
        del spark
        self.num_tables += 1

    def load(self, df: DataFrame, batch_id: int) -> None:
        """Fill the new table."""
        self.append(df, batch_id)

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Add the rows to the table."""
        raise NotImplementedError

    def upsert(self, df: DataFrame, batch_id: int) -> None:
        """Update the rows whose ids exist, and insert the others."""
        raise NotImplementedError

    def rest(self) -> None:
        """Wait for what goes on beside its batches; not timed, and no other contender pays."""

    def feed(self, spark: SparkSession) -> DataFrame:
        """Return the changes of the last upsert, with pre-images and post-images."""
        raise NotImplementedError

    def feeds(self) -> Mapping[str, Callable[[SparkSession], DataFrame]]:
        """Return the ways to read the changes of the last upsert, by name."""
        return {self.name: self.feed}

    def sums(self, spark: SparkSession) -> Sums:
        """Return the sums of the table's rows."""
        row = self.read(spark).selectExpr("count(*)", "sum(id)", "sum(value)").first()
        assert row is not None
        return Sums(int(row[0]), int(row[1]), int(row[2]))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the table's rows."""
        raise NotImplementedError


class Ours(Contender):
    """lance-stream's sink: exactly once, with a change feed."""

    name = "lance-stream"
    verbs = ("load", "append", "upsert", "feed")
    arguments: ClassVar[Mapping[str, Mapping[str, Any]]] = SINK_ARGUMENTS

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.phases: dict[str, dict[str, list[float]]] = {}
        self._sinks: dict[str, LanceSink] = {}

    def begin_table(self, spark: SparkSession) -> None:
        """Drop the sinks of the old table; the first rows create the new one."""
        super().begin_table(spark)
        self._sinks = {}

    def load(self, df: DataFrame, batch_id: int) -> None:
        """Fill the new table."""
        self._run("load", df, batch_id)

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Add the rows."""
        self._run("append", df, batch_id)

    def upsert(self, df: DataFrame, batch_id: int) -> None:
        """Change and add rows."""
        self._run("upsert", df, batch_id)

    def _run(self, verb: str, df: DataFrame, batch_id: int) -> None:
        if verb not in self._sinks:
            self._sinks[verb] = lance_sink(self.target, **self.arguments[verb])
        sink = self._sinks[verb]
        sink(df, batch_id)
        assert sink.last_commit is not None
        phases = self.phases.setdefault(verb, {})
        for phase, seconds in sink.last_commit.seconds.items():
            phases.setdefault(phase, []).append(seconds)

    def feed(self, spark: SparkSession) -> DataFrame:
        """Return the changes of the newest version."""
        register(spark)
        return _changes(spark, "lance", self.target, lance_stream.open_dataset(self.target).version)

    def feeds(self) -> Mapping[str, Callable[[SparkSession], DataFrame]]:
        """Return the ways to read the changes: by the format, and without it."""
        return {self.name: self.feed, "read_changes": self.read_changes}

    def read_changes(self, spark: SparkSession) -> DataFrame:
        """Return the changes of the newest version, without the format."""
        newest = lance_stream.open_dataset(self.target).version
        return read_changes(spark, self.target, startingVersion=newest)

    def sums(self, spark: SparkSession) -> Sums:
        """Return the sums of the table's rows."""
        del spark
        rows = lance_stream.open_dataset(self.target).to_table(columns=["id", "value"])
        return _sums(rows["id"], rows["value"])


class Compacted(Ours):
    """Our sink with automatic compaction."""

    name = "lance-stream, auto"
    arguments = SINK_ARGUMENTS | {"upsert": SINK_ARGUMENTS["upsert"] | {"compact": "auto"}}

    def rest(self) -> None:
        """Wait for a round of compaction, which would run beside the batches of others."""
        for sink in self._sinks.values():
            sink.wait_for_compaction()


class Shared(Compacted):
    """Our sink with automatic compaction on a table that others read and write meanwhile.

    A thread follows the table's feed. After each batch the feed of its version is read, which is
    timed as the phase "feed". After some batches pylance appends rows, with negative ids.
    """

    name = "lance-stream, shared"
    verbs = ("load", "append", "upsert")
    batches_per_append: ClassVar[int] = 10
    rows_per_append: ClassVar[int] = 100

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._changes: ChangeStream | None = None
        self._last_followed = 0

    def rest(self) -> None:
        """Read the feed of the last batch; append rows as another program. Waits for nothing."""
        sink = self._sinks.get("upsert")
        if sink is None:  # the table is being loaded
            return
        if self._changes is None:
            ds = lance_stream.open_dataset(self.target)
            self._changes = ds.follow(snapshot=False, poll_seconds=0.2)
            Thread(target=self._follow, args=(self._changes,), daemon=True).start()
        assert sink.last_commit is not None
        version = sink.last_commit.version
        assert version is not None
        start = time.perf_counter()
        ds = lance_stream.open_dataset(self.target, version=version)
        changes = ds.changes(version - 1).read_all()
        feeds = self.phases["upsert"].setdefault("feed", [])
        feeds.append(time.perf_counter() - start)
        if len(feeds) % self.batches_per_append == 0:
            rows = changes.select(ds.schema.names).slice(0, self.rows_per_append)
            ids = pc.negate(pc.add(rows["id"], 1))
            columns = [ids if name == "id" else rows[name] for name in ds.schema.names]
            rows = pa.Table.from_arrays(columns, schema=ds.schema)
            lance.write_dataset(rows, self.target, mode="append")

    def _follow(self, changes: ChangeStream) -> None:
        for batch in changes:
            self._last_followed = batch.rows["_commit_version"][-1].as_py()

    def sums(self, spark: SparkSession) -> Sums:
        """Return the sums of the table's rows without pylance's, once all changes are followed."""
        del spark
        ds = lance_stream.open_dataset(self.target)
        deadline = time.monotonic() + 60
        sink = self._sinks["upsert"]
        assert sink.last_commit is not None
        while self._last_followed < (sink.last_commit.version or 0):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the feed was followed to version {self._last_followed} only")
            time.sleep(0.1)
        assert self._changes is not None
        self._changes.close()
        rows = ds.scan(columns=["id", "value"], filter="id >= 0").read_all()
        return _sums(rows["id"], rows["value"])


class WithoutDigest(Ours):
    """Our sink without the digest of each batch: shows the cost of the digest."""

    name = "without digest"
    verbs = ("load", "append")

    def _run(self, verb: str, df: DataFrame, batch_id: int) -> None:
        with patch.object(batch_writing, "digest_of", lambda rows: RowsDigest(rows.num_rows)):
            super()._run(verb, df, batch_id)


class Pylance(Contender):
    """pylance on the collected batch: one process, and not exactly once."""

    name = "pylance"

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Collect the rows and append them."""
        del batch_id
        lance.write_dataset(df.toArrow(), self.target, mode="append")

    def upsert(self, df: DataFrame, batch_id: int) -> None:
        """Collect the rows and merge them in."""
        del batch_id
        merge = lance.dataset(self.target).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(df.toArrow())

    def sums(self, spark: SparkSession) -> Sums:
        """Return the sums of the table's rows."""
        del spark
        rows = lance.dataset(self.target).to_table(columns=["id", "value"])
        return _sums(rows["id"], rows["value"])


class Parquet(Contender):
    """Spark's own parquet sink in foreachBatch: not exactly once, no upserts."""

    name = "parquet"
    verbs = ("load", "append")

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Add the rows."""
        del batch_id
        df.write.mode("append").parquet(self.target)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the table's rows."""
        return spark.read.parquet(self.target)


class Iceberg(Contender):
    """Iceberg, format 2, merge-on-read."""

    name = "Iceberg"
    packages = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
    extensions = ("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",)

    @classmethod
    def settings(cls, folder: Path) -> Mapping[str, str]:
        """Return the catalog of its tables."""
        return {
            "spark.sql.catalog.iceberg": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.iceberg.type": "hadoop",
            "spark.sql.catalog.iceberg.warehouse": str(folder / "iceberg"),
        }

    @property
    def target(self) -> str:
        """The newest table's name."""
        return f"iceberg.tables.number_{self.num_tables}"

    def begin_table(self, spark: SparkSession) -> None:
        """Create the table."""
        super().begin_table(spark)
        spark.sql(
            f"CREATE TABLE {self.target} ({SCHEMA}) USING iceberg TBLPROPERTIES ("
            "'format-version' = '2', 'write.merge.mode' = 'merge-on-read')"
        )

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Add the rows."""
        del batch_id
        df.writeTo(self.target).append()

    def upsert(self, df: DataFrame, batch_id: int) -> None:
        """Merge the rows in."""
        del batch_id
        df.createOrReplaceTempView("batch")
        df.sparkSession.sql(MERGE.format(table=self.target))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the table's rows."""
        return spark.table(self.target)


class Delta(Contender):
    """Delta with deletion vectors and its change data feed."""

    name = "Delta"
    verbs = ("load", "append", "upsert", "feed")
    packages = ("io.delta:delta-spark_4.1_2.13:4.4.0",)
    extensions = ("io.delta.sql.DeltaSparkSessionExtension",)
    properties: ClassVar[str] = (
        "'delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true'"
    )

    @classmethod
    def settings(cls, folder: Path) -> Mapping[str, str]:
        """Return its catalog, and a number of state partitions for a small machine."""
        del folder
        return {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def begin_table(self, spark: SparkSession) -> None:
        """Create the table."""
        super().begin_table(spark)
        spark.sql(
            f"CREATE TABLE delta.`{self.target}` ({SCHEMA}) USING delta "
            f"TBLPROPERTIES ({self.properties})"
        )

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Add the rows."""
        del batch_id
        df.write.format("delta").mode("append").save(self.target)

    def upsert(self, df: DataFrame, batch_id: int) -> None:
        """Merge the rows in."""
        del batch_id
        df.createOrReplaceTempView("batch")
        df.sparkSession.sql(MERGE.format(table=f"delta.`{self.target}`"))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the table's rows."""
        return spark.read.format("delta").load(self.target)

    def feed(self, spark: SparkSession) -> DataFrame:
        """Return the changes of the newest version."""
        newest = spark.sql(f"DESCRIBE HISTORY delta.`{self.target}` LIMIT 1").first()
        assert newest is not None
        return _changes(spark, "delta", self.target, newest["version"])


class DeltaWithoutFeed(Delta):
    """Delta with deletion vectors alone: it writes no change files."""

    name = "Delta, no feed"
    verbs = ("load", "append", "upsert")
    properties = "'delta.enableDeletionVectors' = 'true'"


class CompactedDelta(Delta):
    """Delta with its automatic compaction, which is part of a batch."""

    name = "Delta, auto"
    properties = Delta.properties + ", 'delta.autoOptimize.autoCompact' = 'true'"


class Noop(Contender):
    """Spark's sink that drops the rows: shows the cost of reading them."""

    name = "noop"
    verbs = ("append",)
    keeps_rows = False

    def append(self, df: DataFrame, batch_id: int) -> None:
        """Drop the rows."""
        del batch_id
        df.write.format("noop").mode("append").save()


def _changes(spark: SparkSession, name: str, target: str, version: int) -> DataFrame:
    reader = spark.read.format(name).option("readChangeFeed", "true")
    return reader.option("startingVersion", version).option("endingVersion", version).load(target)


def _sums(ids: object, values: object) -> Sums:
    return Sums(len(ids), pc.sum(ids).as_py() or 0, int(pc.sum(values).as_py() or 0))


CONTENDERS: dict[str, type[Contender]] = {
    entry.name: entry
    for entry in (
        Ours,
        Compacted,
        Shared,
        WithoutDigest,
        Pylance,
        Parquet,
        Iceberg,
        Delta,
        CompactedDelta,
        DeltaWithoutFeed,
        Noop,
    )
}
"""All contenders, by name."""
