"""A part: applies Debezium's envelopes to the replica, a Lance table.

    python -m examples.pipeline.sink

At least once becomes exactly once: an envelope that Kafka Connect sends again after a kill is older
than its row (`sequence_by`), or the delete of it (`tombstones`), or replaces the row by itself, as
all that is stored comes from PostgreSQL. A batch that Spark repeats is in the table's ledger.
"""

import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from examples.pipeline import figures
from examples.pipeline.connector import TOPIC
from examples.pipeline.settings import Settings
from examples.pipeline.spark import keep_running, session
from lance_stream.spark import LanceSink, lance_sink
from lance_stream.spark.sink.reports import SinkCommit

_ROW = """
    id BIGINT, title STRING, body STRING, product STRING, state STRING, price STRING,
    revision INT, updated_at STRING
"""
_ENVELOPE = f"""
    before STRUCT<{_ROW}>, after STRUCT<{_ROW}>, source STRUCT<lsn: BIGINT, ts_us: BIGINT>,
    op STRING, ts_us BIGINT
"""
FRESH = {"rows": 500, "age": "5 seconds"}
"""When indices are brought up to date."""


def changes(spark: SparkSession, kafka: str) -> DataFrame:
    """Return the topic as rows of the database's table, with their position in its log.

    Rows of the connector's first snapshot come before all changes: `position` is then negative, see
    docs/guides/recipes/debezium.md.
    """
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 20_000)
        .load()
    )
    parsed = f.from_json(f.col("value").cast("string"), _ENVELOPE, {"mode": "FAILFAST"})
    envelopes = records.select(parsed.alias("e"), "timestamp").where("e.op IN ('c', 'r', 'u', 'd')")
    measured = envelopes.observe(
        "stages",
        f.count(f.expr("IF(e.op <> 'r', 1, NULL)")).alias("changes"),
        *[
            f.avg(f.expr(f"IF(e.op <> 'r', {number}, NULL)")).alias(name)
            for name, number in {
                "committed": "e.source.ts_us / 1e6",
                "captured": "e.ts_us / 1e6",
                "sent": "unix_micros(timestamp) / 1e6",
            }.items()
        ],
    )
    return measured.selectExpr(
        "coalesce(e.after.id, e.before.id) AS id",
        "e.after.title",
        "e.after.body",
        "e.after.product",
        "e.after.state",
        "CAST(e.after.price AS DECIMAL(10, 2)) AS price",
        "e.after.revision",
        "CAST(e.after.updated_at AS TIMESTAMP) AS updated_at",
        "timestamp_micros(e.source.ts_us) AS committed_at",
        "IF(e.op = 'r', e.source.lsn - 9223372036854775807, e.source.lsn) AS position",
        "e.op",
    )


def sink_of(table: str, on_commit: Any = None) -> LanceSink:
    """Return the sink of the replica."""
    return lance_sink(
        table,
        mode="upsert",
        on="id",
        sequence_by="position",
        delete_when="op = 'd'",
        except_columns=["op"],
        tombstones="1 day",
        keep_indices_fresh=FRESH,
        compact="auto",
        app_id="articles",
        on_commit=on_commit,
    )


class Report:
    """Puts together what Spark and the sink say of each batch.

    Args:
        before: The sums that a run which was killed has left.
    """

    def __init__(self, before: dict[str, Any]) -> None:
        self.commits: dict[int, tuple[float, SinkCommit]] = {}
        self.started: dict[int, float] = {}
        self._seen = -1
        self._totals: dict[str, float] = {
            name: value for name, value in before.items() if name != "written_at"
        }

    def committed(self, commit: SinkCommit) -> None:
        """Note when a batch became a version."""
        self.commits[commit.batch_id] = (time.time(), commit)

    def __call__(self, query: StreamingQuery) -> dict[str, Any]:
        """Return sums over all batches, of seconds weighted by changes."""
        for row in query.recentProgress:
            number = int(row["batchId"])
            if number > self._seen and number in self.commits:
                self._seen = number
                self._add(number, row)
        return self._totals

    def _add(self, number: int, progress: Any) -> None:
        ended, commit = self.commits.pop(number)
        started = self.started.pop(number)
        self._sum("batches", 1)
        self._sum("rows_in", commit.rows_in)
        self._sum("late", commit.rows_late)
        self._sum("batch_seconds", progress["durationMs"].get("triggerExecution", 0) / 1000)
        self._sum("sink_seconds", ended - started)
        for name, seconds in commit.seconds.items():
            self._sum(f"sink_{name}_seconds", seconds)
        stages = progress["observedMetrics"].get("stages")
        if not stages or not stages["changes"]:
            return
        num, committed = stages["changes"], stages["committed"]
        self._sum("changes", num)
        self._sum("until_captured", num * (stages["captured"] - committed))
        self._sum("until_sent", num * (stages["sent"] - committed))
        self._sum("until_batch", num * (started - committed))
        self._sum("until_version", num * (ended - committed))

    def _sum(self, name: str, amount: float) -> None:
        self._totals[name] = self._totals.get(name, 0) + amount


def main() -> None:
    """Run until SIGTERM."""
    settings = Settings.read()
    spark = session(settings, "articles: from Kafka to Lance")
    report = Report(figures.read(settings.figures("sink")))
    sink = sink_of(settings.table, report.committed)

    def apply(batch: DataFrame, batch_id: int) -> None:
        report.started[batch_id] = time.time()
        sink(batch, batch_id)

    query = (
        changes(spark, settings.kafka)
        .writeStream.foreachBatch(apply)
        .option("checkpointLocation", str(settings.checkpoint("sink")))
        .start()
    )
    keep_running(query, settings.figures("sink"), report)
    sink.wait_for_compaction()
    sink.wait_for_indices()


if __name__ == "__main__":
    main()
