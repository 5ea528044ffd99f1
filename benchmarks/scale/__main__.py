"""What grows with the number of fragments and of versions, up to a billion rows.

    python -m benchmarks.scale [--fragments 10000 100000] [--versions 1000 10000]
                               [--actions WORD ...] [--folder PATH]

The tables are forged (see `forging`): each fragment has 10,000 rows, row ids and row versions; one
in ten has deleted rows; bounds of the key column are known. Each action runs in a process of its
own, twice: the second run is what the next batch of a stream costs.

    first, again    CPU milliseconds of the process, all threads
    peak MB         by how much its memory has grown at most, in both runs
    files           how many files the second run opened, and how many folders it listed
    x               the last size's second run, as a multiple of the first size's

CPU time is compared within one run only; the sizes' actions follow each other closely.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.scale.actions import HISTORY, TABLE, Action, append_versions
from benchmarks.scale.forging import forge_history, forge_table
from benchmarks.scale.measuring import measure


def compare(
    actions: Mapping[str, Action], sizes: Sequence[int], uris: Sequence[str], what: str
) -> None:
    """Measure each action on each table, and print a line for it."""
    print(f"\n{'':24}" + "".join(f"{size:>31,} {what}"[-31:].rjust(34) for size in sizes))
    print(
        f"{'':24}" + "".join(f"{'first':>9}{'again':>9}{'peak MB':>8}{'files':>8}" for _ in sizes)
    )
    for name, action in actions.items():
        costs = [measure(action, uri) for uri in uris]
        cells = "".join(
            f"{cost.first:9.1f}{cost.again:9.1f}{cost.peak_mb:8.0f}{cost.files:8,}"
            for cost in costs
        )
        ratio = costs[-1].again / max(costs[0].again, 0.1)
        print(f"{name:24}{cells}   {ratio:5.1f} x", flush=True)
        for size, cost in zip(sizes, costs, strict=True):
            if cost.result:
                counts = ", ".join(f"{value:,} {key}" for key, value in cost.result.items())
                print(f"{'':26}{size:,}: {counts}")


def main() -> None:
    """Forge, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fragments", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--versions", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--actions", nargs="+", help="only those whose names contain such a word")
    parser.add_argument("--folder", type=Path, help="where the tables are forged")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-", dir=arguments.folder))

    def chosen(actions: Mapping[str, Action]) -> dict[str, Action]:
        words = arguments.actions or [""]
        return {
            name: action for name, action in actions.items() if any(word in name for word in words)
        }

    try:
        tables = _forge_all(folder, "fragments", arguments.fragments, _forge_lived_in)
        if tables:
            compare(chosen(TABLE), arguments.fragments, tables, "fragments")
            for uri in tables:
                newest = max(Path(uri).glob("_versions/*.manifest"), key=os.path.getmtime)
                print(f"manifest: {newest.stat().st_size / 1e6:.1f} MB")
                shutil.rmtree(uri)
        histories = _forge_all(folder, "versions", arguments.versions, forge_history)
        if histories:
            compare(chosen(HISTORY), arguments.versions, histories, "versions")
    finally:
        shutil.rmtree(folder)


def _forge_lived_in(uri: str, num_fragments: int) -> None:
    forge_table(uri, num_fragments)
    append_versions(uri)


def _forge_all(
    folder: Path, what: str, sizes: Sequence[int], make: Callable[[str, int], None]
) -> list[str]:
    uris = [str(folder / f"{what}-{size}") for size in sizes]
    for uri, size in zip(uris, sizes, strict=True):
        start = time.process_time()
        make(uri, size)
        print(f"{size:,} {what} forged in {time.process_time() - start:.0f} s of CPU", flush=True)
    return uris


if __name__ == "__main__":
    main()
