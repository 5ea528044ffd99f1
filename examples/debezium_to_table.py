"""Apply changes captured by Debezium to a table, and update a search index from the table.

    python examples/debezium_to_table.py [FOLDER]

    FOLDER/topic/*.json     Debezium's envelopes, one per line: before, after, op, source.lsn
          │ a stream, one commit per micro-batch: upserts and deletes by key, the newest lsn wins
    FOLDER/articles.lance   the current rows of the captured database table
          │ its change feed
    FOLDER/search.db        a full-text index (SQLite's FTS5), by row id

The topic is stored as files, as a connector to object storage writes them; with Kafka use
`from_json(col("value").cast("string"), ENVELOPE)` of `readStream.format("kafka")` instead. Lines
may arrive late, twice, or after the delete of their key: their lsn orders them.
"""

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import lance_stream
from lance_stream.spark import lance_sink, register

ARTICLE = "id bigint, title string, body string, views int"
ENVELOPE = f"""
    before struct<{ARTICLE}>,
    after struct<{ARTICLE}>,
    source struct<lsn: bigint>,
    op string
"""


def capture(spark: SparkSession, topic: str, table: str, checkpoint: str) -> StreamingQuery:
    """Apply the topic to the table, then stop. Without the trigger it keeps running."""
    envelopes = spark.readStream.schema(ENVELOPE).option("maxFilesPerTrigger", 100).json(topic)
    # created, read by Debezium's own snapshot, updated, deleted
    envelopes = envelopes.where("op IN ('c', 'r', 'u', 'd')")
    rows = envelopes.withColumn("row", f.coalesce("after", "before")).select(
        "row.*", f.col("source.lsn").alias("lsn"), "op"
    )
    sink = lance_sink(
        table,
        mode="upsert",
        on="id",
        sequence_by="lsn",
        delete_when="op = 'd'",
        except_columns=["op"],
        tombstones="7 days",  # a line older than the delete of its key does not restore it
    )
    return start(rows, sink, checkpoint)


def index(spark: SparkSession, table: str, database: str, checkpoint: str) -> StreamingQuery:
    """Apply all changes of the table to the search index, then stop."""
    changes = (
        spark.readStream.format("lance")
        .option("readChangeFeed", "true")
        .option("columns", "title,body")  # a change of the views alone is an update, too
        .option("filter", "_change_type <> 'update_preimage'")
        .load(table)
    )
    return start(changes, SearchIndex(database), checkpoint)


def start(rows: DataFrame, sink: Any, checkpoint: str) -> StreamingQuery:
    return (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


class SearchIndex:
    """Applies each micro-batch of a change feed once: its batch id is in the same transaction."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS article USING fts5(title, body)")
            db.execute("CREATE TABLE IF NOT EXISTS applied (batch_id INTEGER PRIMARY KEY)")

    def __call__(self, changes: DataFrame, batch_id: int) -> None:
        """Apply the changes to the index."""
        with closing(sqlite3.connect(self.path)) as db, db:
            if db.execute("SELECT 1 FROM applied WHERE batch_id >= ?", [batch_id]).fetchone():
                return  # Spark repeats the last batch after a crash
            # A row keeps its id until it is deleted. In the feed deletes come first.
            in_order = changes.orderBy("_commit_version", f.expr("_change_type <> 'delete'"))
            for change in in_order.toLocalIterator():
                row_id = int(change["_rowid"])
                db.execute("DELETE FROM article WHERE rowid = ?", [row_id])
                if change["_change_type"] != "delete":
                    db.execute(
                        "INSERT INTO article (rowid, title, body) VALUES (?, ?, ?)",
                        [row_id, change["title"], change["body"]],
                    )
            db.execute("INSERT INTO applied VALUES (?)", [batch_id])

    def search(self, words: str) -> list[str]:
        """Return the titles of the articles that contain these words, the best match first."""
        query = "SELECT title FROM article WHERE article MATCH ? ORDER BY rank, rowid"
        with closing(sqlite3.connect(self.path)) as db:
            return [title for (title,) in db.execute(query, [words])]


def main(folder: str) -> None:
    spark = (
        SparkSession.builder.appName("Debezium to a table")
        .master("local[2]")
        .config("spark.python.unix.domain.socket.enabled", "true")  # quicker small batches
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(spark)
    topic, table, database = f"{folder}/topic", f"{folder}/articles.lance", f"{folder}/search.db"
    Path(topic).mkdir()

    publish(
        topic,
        envelope("r", 1, after=article(1, "Columns", "Lance keeps columns in pages")),
        envelope("r", 2, after=article(2, "Streams", "A stream of changes, once each")),
        envelope("c", 3, after=article(3, "Draft", "to be removed")),
    )
    run(spark, topic, table, database)
    publish(
        topic,
        envelope("d", 9, before=article(3, "Draft", "to be removed")),
        envelope("u", 7, after=article(3, "Draft", "changed before it was removed")),  # late
        envelope("u", 8, after=article(2, "Streams", "A stream of changes, exactly once")),
        envelope("u", 6, after=article(2, "Streams", "an older text")),  # late
        envelope("c", 5, after=article(4, "Vectors", "Pages of vectors beside columns")),
    )
    run(spark, topic, table, database)

    results = {
        words: SearchIndex(database).search(words) for words in ("pages", "exactly", "older")
    }
    print(f"found: {results}")
    if results != {"pages": ["Columns", "Vectors"], "exactly": ["Streams"], "older": []}:
        sys.exit("The index does not match the database.")


def run(spark: SparkSession, topic: str, table: str, database: str) -> None:
    folder = str(Path(topic).parent)
    capture(spark, topic, table, f"{folder}/capture-checkpoint").awaitTermination()
    index(spark, table, database, f"{folder}/index-checkpoint").awaitTermination()
    ds = lance_stream.open_dataset(table)
    titles = ", ".join(f"{row['id']} {row['title']}" for row in ds.to_table().to_pylist())
    print(f"articles, version {ds.version}: {titles}")


def article(key: int, title: str, body: str) -> dict[str, Any]:
    return {"id": key, "title": title, "body": body, "views": 0}


def envelope(op: str, lsn: int, **images: Any) -> dict[str, Any]:
    return {"before": None, "after": None, "source": {"lsn": lsn}, "op": op, **images}


def publish(topic: str, *envelopes: dict[str, Any]) -> None:
    number = len(list(Path(topic).iterdir()))
    hidden = Path(topic, f".{number:05}.json")
    hidden.write_text("".join(json.dumps(value) + "\n" for value in envelopes))
    hidden.rename(hidden.with_name(hidden.name[1:]))  # Spark sees whole files only


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
