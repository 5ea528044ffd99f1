"""Batches with one bad row each: CPU time to commit, list and replay them, and what they store.

    python -m benchmarks.quarantine [--batches 1000] [--compact] [--folder PATH]

No Spark: each batch does on the driver what a sink does. `--compact` compacts the quarantine before
it is listed.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import lance_stream
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.verbs.append import append
from lance_stream.write.row_checks import CheckedBatches, RowRules

STORED = pa.schema([("id", pa.int64()), ("x", pa.uint8())])
INCOMING = pa.schema([("id", pa.int64()), ("x", pa.int16())])
RULES = {"mode": "append", "on": [], "sequence_by": None, "except_columns": [], "expect": {}}


def commit_batches(uri: str, num_batches: int) -> None:
    """Commit batches of one good and one bad row."""
    lance_stream.create_dataset(uri, STORED)
    for number in range(num_batches):
        rows = [{"id": number, "x": 1}, {"id": -number, "x": 300}]
        checked = CheckedBatches(
            [pa.RecordBatch.from_pylist(rows, INCOMING)], RowRules(STORED, (), keeps_rows=True)
        )
        good = pa.Table.from_batches(list(checked))
        table = lance_stream.open_dataset(uri).table
        quarantine = QuarantineBatch(quarantine_uri(uri), {}, MicroBatch("app", number))
        quarantine.begin(table)
        quarantine.stage(checked.bad, RULES, table)
        identity = {"digest": checked.digest, "quarantined": quarantine.file}
        append(table, good, PendingBatch.of("app", number, **identity))
        quarantine.publish(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--compact", action="store_true", help="compact the quarantine")
    parser.add_argument("--folder", help="where the table is made; by default, for files in /tmp")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="lance-stream-bench-", dir=arguments.folder)
    uri = f"{folder}/t.lance"
    try:
        timed("batches", lambda: commit_batches(uri, arguments.batches))
        for name in (uri, quarantine_uri(uri)):
            files = [path for path in Path(name).rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files)
            print(f"  {Path(name).name}: {len(files)} files, {size:,} bytes")
        (entry,) = ledger_texts(uri)
        print(f"  the ledger's entry: {len(entry)} bytes")
        if arguments.compact:
            timed("compact", lambda: lance_stream.open_dataset(quarantine_uri(uri)).compact())
        timed("list", lambda: lance_stream.list_quarantine(uri))
        timed("replay", lambda: lance_stream.replay_quarantine(uri, fix={"x": "1"}))
        if lance_stream.open_dataset(uri).count_rows() != 2 * arguments.batches:
            sys.exit("the table does not have all rows")
    finally:
        shutil.rmtree(folder)


def ledger_texts(uri: str) -> list[str]:
    """Return the ledger's entries in the newest manifest."""
    config = lance_stream.open_dataset(uri).table.manifest.config
    return [value for key, value in config.items() if key.startswith("lance_stream.ledger.")]


def timed(name: str, act: Callable[[], object]) -> None:
    """Print the CPU time of an act."""
    before = time.process_time()
    act()
    print(f"{name:8}{time.process_time() - before:8.2f} s CPU", flush=True)


if __name__ == "__main__":
    main()
