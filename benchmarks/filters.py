"""Filters that indices serve: ours and pylance's, with indices and without.

    python -m benchmarks.filters [--rows 1000000] [--fragments 10] [--rounds 15]

Two tables of the same rows: random int64 keys, 50 groups in turn, 5,000 names, random doubles. On
one of them pylance makes a BTREE on the keys and on the names, and a BITMAP on the groups. Each
question is answered `rounds` times by the four contenders, in turn, by tables that stay open; for
the last one each opens its table anew. Two columns are read. Shown are medians of the CPU time of
all threads, and the ratios of

    with/pylance        our time with indices to pylance's with indices
    with/without        our time with indices to ours without: at most 1
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_stream

CONTENDERS = ("ours with", "ours without", "pylance with", "pylance without")
COLUMNS = ["id", "x"]


def questions(num_rows: int) -> dict[str, str]:
    """Return conditions by what they ask for."""
    some = num_rows // 3
    listed = ", ".join(str(number) for number in range(some, some + 1000))
    return {
        "one key": f"id = {some}",
        "4 keys": f"id IN ({some}, {some // 2}, 5, {num_rows - 7})",
        "100 keys in a row": f"id >= {some} AND id < {some + 100}",
        "1,000 keys listed": f"id IN ({listed})",
        "a name, 1 row in 5,000": "s = 'name77'",
        "a group, 1 row in 50": "g = 7",
        "a group of 1,000 keys": f"g = 7 AND id >= {some} AND id < {some + 1000}",
        "half of all": f"id < {num_rows // 2}",
        "no index": "x < 0.0001",
    }


def make(folder: Path, num_rows: int, num_fragments: int) -> tuple[str, str]:
    """Make the two tables; return their locations, that with indices first."""
    dice = np.random.default_rng(54)
    numbers = np.arange(num_rows)
    rows = pa.table(
        {
            "id": dice.permutation(num_rows),
            "x": dice.random(num_rows),
            "s": pa.array([f"name{number % 5000}" for number in range(num_rows)]),
            "g": numbers % 50,
        }
    )
    plain, indexed = folder / "plain", folder / "indexed"
    per_file = -(-num_rows // num_fragments)
    lance.write_dataset(rows, plain, max_rows_per_file=per_file, enable_stable_row_ids=True)
    shutil.copytree(plain, indexed)
    ds = lance.dataset(indexed)
    ds.create_scalar_index("id", "BTREE")
    ds.create_scalar_index("s", "BTREE")
    ds.create_scalar_index("g", "BITMAP")
    return str(indexed), str(plain)


def measure(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each way; all give as many rows."""
    assert len({way().num_rows for way in ways.values()}) == 1
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(rounds):
        random.Random(rounds).shuffle(order)
        for name in order:
            start = time.process_time()
            ways[name]()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(second) for name, second in seconds.items()}


def show(name: str, took: dict[str, float]) -> None:
    """Print the figures of a question."""
    times = "".join(f"{1e3 * took[contender]:12.1f}" for contender in CONTENDERS)
    to_pylance = took["ours with"] / max(took["pylance with"], 1e-9)
    to_scan = took["ours with"] / max(took["ours without"], 1e-9)
    print(f"{name:26}{times}{to_pylance:12.2f}x{to_scan:12.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fragments", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lance-stream-") as folder:
        uris = make(Path(folder), arguments.rows, arguments.fragments)
        opens: list[Callable[[], Any]] = [
            *(lambda uri=uri: lance_stream.open_dataset(uri) for uri in uris),
            *(lambda uri=uri: lance.dataset(uri) for uri in uris),
        ]
        open_tables = [value() for value in opens]
        print(
            "CPU milliseconds".ljust(26)
            + "".join(f"{contender.replace('pylance', 'its'):>12}" for contender in CONTENDERS)
            + f"{'with/pylance':>13}{'with/without':>13}"
        )
        for name, condition in questions(arguments.rows).items():
            ways = {
                contender: lambda ds=ds, condition=condition: ds.to_table(COLUMNS, filter=condition)
                for contender, ds in zip(CONTENDERS, open_tables, strict=True)
            }
            show(name, measure(ways, arguments.rounds))
        condition = questions(arguments.rows)["one key"]
        ways = {
            contender: lambda make=make: make().to_table(COLUMNS, filter=condition)
            for contender, make in zip(CONTENDERS, opens, strict=True)
        }
        show("one key, opened anew", measure(ways, arguments.rounds))


if __name__ == "__main__":
    main()
