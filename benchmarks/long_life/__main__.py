"""The cost of a batch as a table's history grows: scattered upserts, lance-stream and pylance.

    python -m benchmarks.long_life [--rows 1000000] [--batches 120] [--updates 18000]
                                   [--inserts 2000] [--keys ascending|random|strings] [--vector 16]
                                   [--contenders ours pylance ours:20 ours:auto] [--window 20]
                                   [--json FILE] [--picture FILE] [--folder /dev/shm]

Each batch updates rows at random places of the table and inserts some; no Spark takes part. The
contenders write it in turn, in random order, each in its own process. `ours:20` compacts after
every 20 batches, `ours:auto` when it pays: in a stream beside its batches, but here between them,
and timed apart.

For each window of batches:

    batch           median milliseconds of a batch; and of the process's CPU
    compaction      CPU milliseconds of compaction per batch
    manifest        size of the newest manifest
    open            CPU of opening a version that this process has not seen
    point read      CPU of reading the row of one key
    feed            CPU of reading the changes of one version, without pre-images
    fragments, dead rows, bytes written since the last window

Only ratios carry over to other machines.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.long_life.life import Lines, live
from benchmarks.long_life.picture import draw
from benchmarks.long_life.windows import by_window, curves, header, row
from benchmarks.long_life.workload import KEY_KINDS, Workload


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--updates", type=int, default=18_000)
    parser.add_argument("--inserts", type=int, default=2_000)
    parser.add_argument("--keys", choices=KEY_KINDS, default="random")
    parser.add_argument(
        "--vector", type=int, default=0, help="floats per row; by default no vector"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--contenders", nargs="+", default=["ours", "pylance", "ours:20", "ours:auto"]
    )
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--picture", type=Path, help="draw the curves into this SVG file")
    parser.add_argument("--folder", type=Path, help="where the tables are written")
    arguments = parser.parse_args()
    workload = Workload(
        rows=arguments.rows,
        updates=arguments.updates,
        inserts=arguments.inserts,
        keys=arguments.keys,
        seed=arguments.seed,
        vector=arguments.vector,
    )
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-", dir=arguments.folder))
    print(header(), flush=True)

    def note(number: int, lines: Lines) -> None:
        for name in arguments.contenders:
            last = by_window(lines[name], arguments.window)[-1]
            print(row(number, name, last), flush=True)
        if arguments.json is not None:
            figures = {"workload": vars(workload), "window": arguments.window, "batches": lines}
            arguments.json.write_text(json.dumps(figures))

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the contenders' processes, too
    start = time.monotonic()
    try:
        lines = live(
            arguments.contenders, workload, arguments.batches, arguments.window, folder, note
        )
    finally:
        shutil.rmtree(folder)
    if arguments.picture is not None:
        arguments.picture.write_text(draw(curves(lines, arguments.window)))
    first = arguments.contenders[0]
    for name in arguments.contenders:
        windows = by_window(lines[name], arguments.window)
        growth = windows[-1].batch / windows[0].batch
        others = windows[-1].batch / by_window(lines[first], arguments.window)[-1].batch
        print(f"{name}: the last batches take {growth:.2f} x the first, {others:.2f} x {first}'s")
    print(f"{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
