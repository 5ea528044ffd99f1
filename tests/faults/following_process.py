"""Follows a table, stores rows with positions, and dies at a random moment, if SEED is not empty.

    python following_process.py URI OUTPUT SEED [CONSUMER]

With a consumer, the table stores the position; otherwise OUTPUT does, in the same file as the rows.
A file is replaced as a whole. Prints "done" if it has read everything.
"""

import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import lance_stream


def main(uri: str, output: str, seed: str, consumer: str | None = None) -> None:
    """Follow the table until the timer kills the process."""
    path, dice = Path(output), random.Random(seed)
    stored: dict[str, Any] = {"position": None, "rows": []}
    if path.exists():
        stored = json.loads(path.read_text())
    after = None if consumer else stored["position"]
    if seed:  # processor time, so that a busy machine makes no difference
        signal.setitimer(signal.ITIMER_PROF, dice.uniform(0.001, 0.1))
    stream = lance_stream.open_dataset(uri).follow(
        consumer, after=after, wait=False, max_rows=dice.choice([1, 3, 10, 50])
    )
    for batch in stream:
        stored["rows"] += [
            [row["id"], row["x"], row["_change_type"], row["_commit_version"]]
            for row in batch.rows.to_pylist()
        ]
        stored["position"] = batch.position
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(stored))
        unfinished.replace(path)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
