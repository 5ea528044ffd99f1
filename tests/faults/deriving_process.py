"""Keeps derived columns up to date, in the same table and beside it, and upserts between.

Run by a test, which kills it; the function runs in the process, or in Spark's tasks.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

import lance_stream
from lance_stream import Derivation, derive
from tests.faults.streaming_process import QUICK_START

NUM_IDS = 120


def value_of(text: str | None) -> str:
    """Return what the function computes."""
    return f"value of {text}"


def slowly(batch: pa.RecordBatch) -> list[str]:
    """Compute values; kills hit it in the middle."""
    time.sleep(0.002)
    if "bad" in batch["text"].to_pylist():
        raise ValueError("bad")
    return [value_of(text) for text in batch["text"].to_pylist()]


def in_table(uri: str, make: Callable[..., Derivation] = derive, **options: Any) -> Derivation:
    """Return the derivation of a column of the same table."""
    settings: dict[str, Any] = {"function_version": "1", "batch_rows": 10, "rows_per_commit": 40}
    return make(uri, {"value": pa.string()}, slowly, "text", **settings | options)


def beside(uri: str, make: Callable[..., Derivation] = derive) -> Derivation:
    """Return the derivation of a table beside."""
    return in_table(uri, make, target=f"{uri}-beside", copy_columns=["id"])


def change(uri: str, seed: int) -> None:
    """Upsert some rows, and delete some."""
    dice = random.Random(seed)
    ids = dice.sample(range(NUM_IDS), 20)
    texts = [dice.choice(["bad", *map(str, range(100))]) for _ in ids]
    ds = lance_stream.open_dataset(uri).upsert(pa.table({"id": ids, "text": texts}), on="id")
    ds.delete(f"id = {dice.randrange(NUM_IDS)}")


def by_tasks() -> Callable[..., Derivation]:
    """Start Spark, and return what declares derivations whose function runs in its tasks."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from lance_stream import spark as in_spark

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    return partial(in_spark.derive, session)


def main(uri: str, seed: int, where: str) -> None:
    """Change the table and compute, round after round."""
    make = by_tasks() if where == "tasks" else derive
    for number in count():
        change(uri, seed * 1000 + number)
        in_table(uri, make).run(max_commits=2)
        beside(uri, make).run(max_commits=2)
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
