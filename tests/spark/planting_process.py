"""A Spark program that is given secrets in every possible way, and prints all that Spark shows.

    planting_process.py FOLDER        reads a JSON object from stdin:

    uri, options            a bucket, and what is needed to reach it
    settings                Spark's own settings, "spark.hadoop." in front
    wrong                   options that name an address without a service
    is_brief                whether only reading, the sink and errors are tried: what Spark shows
                            does not depend on the store

What is shown goes to FOLDER/shown, a file for each place; the log of the driver and its workers to
FOLDER/log, event logs to FOLDER/events.
"""

import json
import logging
import os
import sys
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/log/driver
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""
REST = (
    "environment", "jobs", "stages?details=true", "allexecutors",
    "sql?details=true&planDescription=true&length=1000",
)  # fmt: skip
PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "StreamingQuery/")


def main(folder: Path) -> None:
    program_input = json.load(sys.stdin)
    for name in ("shown", "log", "events", "conf"):
        (folder / name).mkdir()
    (folder / "conf" / "log4j2.properties").write_text(LOG4J.format(folder=folder))
    os.environ["SPARK_CONF_DIR"] = str(folder / "conf")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Not DEBUG: there py4j logs all that is sent to Spark, and botocore the headers that it sends.
    logging.basicConfig(filename=folder / "log" / "python", level=logging.INFO)
    logging.getLogger("lance_stream").setLevel(logging.DEBUG)

    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "INFO")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    for name, value in program_input["settings"].items():
        builder = builder.config(name, value)
    outputs = act(builder.getOrCreate(), folder, program_input)
    for name, text in outputs.items():
        (folder / "shown" / name.replace("/", "-")).write_text(text)


def act(spark: Any, folder: Path, program_input: dict[str, Any]) -> dict[str, str]:
    from lance_stream.spark import lance_sink, register

    outputs: dict[str, str] = {}
    uri, options, wrong = program_input["uri"], program_input["options"], program_input["wrong"]
    as_option = {"secretStorageOptions": json.dumps(options)}

    sink = lance_sink(f"{uri}/sink", app_id="a", storage_options=options)
    register(spark)
    spark.range(20).write.format("lance").options(**as_option).mode("append").save(f"{uri}/t")
    rows = spark.read.format("lance").options(**as_option).load(f"{uri}/t")
    rows.repartition(2).write.format("noop").mode("append").save()
    sink(rows.repartition(2), 0)
    outputs["objects"] = f"{rows!r} {sink!r} {sink.arguments!r} {sink.last_commit!r}"
    for mode in ("extended", "formatted", "cost"):
        outputs[f"plan, {mode}"] = printed(rows.filter("id > 3").explain, mode)
    if not program_input["is_brief"]:
        outputs |= streams_and_sql(spark, folder, program_input, as_option)
    outputs |= errors(spark, uri, wrong, rows)
    application = spark.sparkContext.applicationId
    root = spark.sparkContext.uiWebUrl
    for number in REST:
        outputs[f"rest {number}"] = get(f"{root}/api/v1/applications/{application}/{number}")
    executions = json.loads(outputs[f"rest {REST[-1]}"])
    pages = [*PAGES, *(f"SQL/execution/?id={execution['id']}" for execution in executions)]
    outputs["pages"] = "".join(get(f"{root}/{page}") for page in pages)
    spark.stop()
    return outputs


def streams_and_sql(
    spark: Any, folder: Path, program_input: dict[str, Any], as_option: dict[str, str]
) -> dict[str, str]:
    from lance_stream.spark import lance_sink, register

    outputs: dict[str, str] = {}
    uri, options = program_input["uri"], program_input["options"]

    def stream(df: Any, name: str, into: Any) -> None:
        writer = df.writeStream.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        writer = writer.trigger(availableNow=True)
        if isinstance(into, str):
            query = writer.format("lance").options(**as_option).start(into)
        else:
            query = writer.foreachBatch(into).start()
        query.awaitTermination()
        outputs[f"progress of {name}"] = json.dumps(query.recentProgress, default=str) + repr(query)
        outputs[f"plan of {name}"] = printed(query.explain, True)

    text = ", ".join(f"{name} '{value}'" for name, value in as_option.items())
    spark.sql(f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{uri}/t', {text})")
    spark.sql("SELECT count(*) FROM v").collect()
    outputs["view"] = printed(spark.sql("EXPLAIN EXTENDED SELECT * FROM v").show, 99, False)
    spark.sql("INSERT INTO v SELECT id + 100 FROM range(3)")

    feed = spark.readStream.format("lance").option("readChangeFeed", "true").options(**as_option)
    ids = feed.load(f"{uri}/t").select("id")
    stream(ids, "sink", lance_sink(f"{uri}/out", storage_options=options))
    stream(ids, "writer", f"{uri}/out2")

    register(spark, "of_session", storage_options=options)
    outputs["registered"] = repr(spark.read.format("of_session").load(f"{uri}/t").collect())
    function = spark.sql(f"SELECT * FROM of_session_changes('{uri}/t', 1)")
    outputs["function"] = printed(function.explain, True) + repr(function.collect())
    if program_input["settings"]:
        register(spark, "by_settings")
        outputs["settings"] = repr(spark.read.format("by_settings").load(f"{uri}/t").count())
        lance_sink(f"{uri}/by_settings", app_id="a")(spark.range(3), 0)

    return outputs


def errors(spark: Any, uri: str, wrong: dict[str, str], rows: Any) -> dict[str, str]:
    """Return the errors for a store that cannot be reached."""
    from lance_stream.spark import lance_sink, register

    def fails(ask: Callable[[], Any]) -> str:
        try:
            ask()
        except Exception as error:
            return f"{error} {error!r} {error.__cause__!r}"
        raise AssertionError("there is nobody to answer")

    register(spark, "wrong", storage_options=wrong)
    load = spark.read.format("lance").option("secretStorageOptions", json.dumps(wrong)).load
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 9).load()
    into = rates.select("value").writeStream.option("checkpointLocation", "/tmp/none")
    into = into.trigger(availableNow=True).format("wrong")

    def write_in_tasks() -> None:
        from lance_stream.storage.locations import open_store

        store = open_store(uri, wrong)
        spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: store.write("a", b"a"))

    return {
        "error of a load": fails(lambda: load(f"{uri}/t")),
        "error of a registered format": fails(lambda: spark.read.format("wrong").load(f"{uri}/t")),
        "error of a write": fails(
            lambda: rows.write.format("wrong").mode("append").save(f"{uri}/none")
        ),
        "error of a stream": fails(lambda: into.start(f"{uri}/none").awaitTermination()),
        "error of a sink": fails(
            lambda: lance_sink(f"{uri}/none", app_id="a", storage_options=wrong)(rows, 0)
        ),
        "error of tasks": fails(write_in_tasks),
        "error of a bad option": fails(
            lambda: (
                spark.read.format("lance")
                .option("storageOptions", json.dumps(wrong)[:-1])
                .load(f"{uri}/t")
            )
        ),
        "error of an unknown name": fails(
            lambda: spark.read.format("lance").options(**wrong).load(f"{uri}/t")
        ),
    }


def printed(show: Callable[..., Any], *arguments: Any) -> str:
    out = StringIO()
    with redirect_stdout(out):
        show(*arguments)
    return out.getvalue()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
