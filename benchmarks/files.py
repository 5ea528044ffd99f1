"""Write and read columns of every kind: lance-stream and pylance, in one run.

    python -m benchmarks.files [--rows 1000000 5000000] [--turns 3] [--kinds ids text]
                               [--versions 2.2] [--folder /dev/shm] [--cpu] [--loops always]

For each kind of column (`benchmarks.column_kinds`) and each file version:

    write           appending the column to an empty table: a data file and a commit
    read ours       reading the table that we wrote
    read theirs     reading the table that pylance wrote
    take            1,000 random rows, each program from its own table
    size            our file's size over theirs

All except size are ratios of speed: above 1, ours is faster. Each program runs in its own process,
and both take turns; the minimum times are compared, of five times as many turns where rows are
taken, which takes a millisecond or two. Neither flushes what it writes to the disk. A star marks
ratios below the target of their group; taking rows has none. The folder should be in memory, so
that no disk is measured.

pylance works with as many threads as there are cores. With --cpu, the CPU times of all threads are
compared, which also tells more on a busy machine. With --loops never, our process does without
the compiled loops of the extra "fast"; with --loops always, it fails without them.
"""

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import lance
import numpy as np
import pyarrow as pa

import lance_stream
from benchmarks.column_kinds import ALL_VERSIONS, KINDS
from benchmarks.side_by_side import Worker
from lance_stream.file.compression.compiled import loops

AIMS: Final = {
    "flat": 1.0,
    "vectors": 1.0,
    "bit-packed": 1.0,
    "runs": 1.0,
    "constant": 1.0,
    "dictionary": 1.0,
    "strings": 0.5,
    "nested": 0.5,
}
"""The target ratio of speed for each group of kinds."""

_resources: Final = ExitStack()
"""Open until the process ends."""

MEAN_AIM: Final = 1.0
SIZE_AIM: Final = 1.05
MEASURES: Final = ("write", "read ours", "read theirs", "take", "size")
ROWS_TAKEN: Final = 1000
TURNS_OF_TAKES: Final = 5


@dataclass(frozen=True)
class Cell:
    """The measurements of one kind in one version.

    Attributes:
        kind: The name of the kind.
        version: The file version.
        num_rows: The number of rows.
        ratios: The ratio of each measure; empty if a program refused.
        refusal: The error of a program that cannot write or read it.
    """

    kind: str
    version: str
    num_rows: int
    ratios: dict[str, float]
    refusal: str = ""

    def misses(self, measure: str) -> bool:
        """Return whether a ratio misses its target."""
        ratio = self.ratios[measure]
        if measure == "size":
            return ratio > SIZE_AIM
        return measure != "take" and ratio < AIMS[KINDS[self.kind].group]


@cache
def table_of(kind: str, num_rows: int) -> pa.Table:
    """Return the table, created once per process."""
    table_of.cache_clear()
    return KINDS[kind].table(num_rows)


@cache
def sample_offsets(num_rows: int) -> list[int]:
    """Return the rows that are taken."""
    count = min(ROWS_TAKEN, num_rows)
    offsets: list[int] = np.random.default_rng(1).choice(num_rows, count, replace=False).tolist()
    return sorted(offsets)


def set_loops(choice: str) -> None:
    """Load the compiled loops before anything is timed, or make sure that none are used."""
    if choice == "never":
        _resources.enter_context(loops.replaced(None))
    elif loops.get() is None and choice == "always":
        raise RuntimeError("the compiled loops need numba: pip install 'lance-stream[fast]'")


def make(kind: str, num_rows: int) -> None:
    """Create the table before anything is timed."""
    table_of(kind, num_rows)


def we_create(uri: str, version: str, kind: str, num_rows: int) -> None:
    """Create an empty table with lance-stream."""
    shutil.rmtree(uri, ignore_errors=True)
    lance_stream.create_dataset(uri, table_of(kind, num_rows).schema, file_version=version)


def pylance_creates(uri: str, version: str, kind: str, num_rows: int) -> None:
    """Create an empty table with pylance."""
    shutil.rmtree(uri, ignore_errors=True)
    lance.write_dataset(table_of(kind, num_rows).slice(0, 0), uri, data_storage_version=version)


def we_write(uri: str, kind: str, num_rows: int) -> None:
    """Append the column with lance-stream, which flushes nothing, as pylance does."""
    table = lance_stream.open_dataset(uri, storage_options={"durable": "never"})
    table.append(table_of(kind, num_rows))


def pylance_writes(uri: str, kind: str, num_rows: int) -> None:
    """Append the column with pylance, which makes as many files."""
    lance.write_dataset(table_of(kind, num_rows), uri, mode="append")


def we_read(uri: str, num_rows: int) -> None:
    """Read a table with lance-stream."""
    _check(lance_stream.open_dataset(uri).to_table().num_rows, num_rows)


def pylance_reads(uri: str, num_rows: int) -> None:
    """Read a table with pylance."""
    _check(lance.dataset(uri).to_table().num_rows, num_rows)


def we_take(uri: str, num_rows: int) -> None:
    """Take some rows with lance-stream."""
    offsets = sample_offsets(num_rows)
    _check(lance_stream.open_dataset(uri).take(row_offsets=offsets).num_rows, len(offsets))


def pylance_takes(uri: str, num_rows: int) -> None:
    """Take some rows with pylance."""
    offsets = sample_offsets(num_rows)
    _check(lance.dataset(uri).take(offsets).num_rows, len(offsets))


def _check(num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise RuntimeError(f"{num_rows} rows instead of {expected}")


def measure(
    kind: str, version: str, num_rows: int, turns: int, workers: tuple[Worker, Worker], folder: Path
) -> Cell:
    """Measure one kind in one version."""
    ours, theirs = str(folder / "ours"), str(folder / "theirs")
    we, pylance = workers

    def ratio(our: Callable[[], float], their: Callable[[], float], turns: int = turns) -> float:
        runs = [(our(), their()) for _ in range(turns + 1)][1:]
        return min(run[1] for run in runs) / min(run[0] for run in runs)

    def written(
        worker: Worker, create: Callable[..., None], write: Callable[..., None], uri: str
    ) -> float:
        worker.seconds(create, uri, version, kind, num_rows)
        return worker.seconds(write, uri, kind, num_rows)

    def read(uri: str) -> float:
        return ratio(
            lambda: we.seconds(we_read, uri, num_rows),
            lambda: pylance.seconds(pylance_reads, uri, num_rows),
        )

    try:
        for worker in workers:
            worker.seconds(make, kind, num_rows)
        ratios = {
            "write": ratio(
                lambda: written(we, we_create, we_write, ours),
                lambda: written(pylance, pylance_creates, pylance_writes, theirs),
            ),
            "read ours": read(ours),
            "read theirs": read(theirs),
            "take": ratio(
                lambda: we.seconds(we_take, ours, num_rows),
                lambda: pylance.seconds(pylance_takes, theirs, num_rows),
                turns * TURNS_OF_TAKES,
            ),
            "size": data_bytes(ours) / data_bytes(theirs),
        }
    except RuntimeError as error:
        return Cell(kind, version, num_rows, {}, str(error))
    finally:
        for uri in (ours, theirs):
            shutil.rmtree(uri, ignore_errors=True)
    return Cell(kind, version, num_rows, ratios)


def data_bytes(uri: str) -> int:
    """Return the size of a table's data files."""
    return sum(path.stat().st_size for path in Path(uri).rglob("*.lance"))


def show(cell: Cell) -> None:
    """Print a line of the table."""
    head = f"{cell.kind:15} {cell.version} {cell.num_rows:>9,}"
    if cell.refusal:
        print(f"{head}  refused: {cell.refusal[:90]}", flush=True)
        return
    ratios = "".join(
        f"{cell.ratios[value]:11.2f}{'*' if cell.misses(value) else ' '}" for value in MEASURES
    )
    print(f"{head}{ratios}", flush=True)


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean of some ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def show_means(cells: list[Cell]) -> None:
    """Print the geometric means, for each version and for all."""
    measured = [cell for cell in cells if cell.ratios]
    for version in dict.fromkeys(version.version for version in measured):
        some = [value for value in measured if value.version == version]
        means = {name: geometric_mean(value.ratios[name] for value in some) for name in MEASURES}
        line = "".join(f"{means[name]:11.2f} " for name in MEASURES)
        print(f"{'geometric mean':15} {version} {'':9}{line}")
    speeds = [value.ratios[name] for value in measured for name in MEASURES if name != "size"]
    mean = geometric_mean(speeds)
    verdict = "met" if mean >= MEAN_AIM else "MISSED"
    print(f"geometric mean of all speeds: {mean:.2f} (target {MEAN_AIM}: {verdict})")
    missed = sum(value.misses(name) for value in measured for name in MEASURES)
    print(f"{missed} of {len(measured) * len(MEASURES)} cells miss their target")


def main() -> None:
    """Measure all kinds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--versions", nargs="+", choices=ALL_VERSIONS, default=list(ALL_VERSIONS))
    memory = Path("/dev/shm")
    parser.add_argument("--folder", type=Path, default=memory if memory.is_dir() else None)
    parser.add_argument("--cpu", action="store_true", help="compare CPU time")
    parser.add_argument("--loops", choices=("always", "never", "if installed"))
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu else time.perf_counter
    begun = time.monotonic()
    print("speed of ours over pylance's, above 1 we are faster; size of ours over theirs\n")
    print(f"{'':15} {'':3} {'rows':>9}" + "".join(f"{number:>11} " for number in MEASURES))
    with (
        tempfile.TemporaryDirectory(prefix="lance-stream-", dir=arguments.folder) as root,
        Worker(clock) as we,
        Worker(clock) as pylance,
    ):
        we.seconds(set_loops, arguments.loops or "if installed")
        workers, folder = (we, pylance), Path(root)
        for requested in arguments.rows:
            cells = []
            for kind in arguments.kinds:
                num_rows = KINDS[kind].num_rows(requested)
                for version in arguments.versions:
                    if version in KINDS[kind].versions:
                        cell = measure(kind, version, num_rows, arguments.turns, workers, folder)
                        cells.append(cell)
                        show(cell)
            print()
            show_means(cells)
            print()
    print(f"{time.monotonic() - begun:.0f} seconds")


if __name__ == "__main__":
    main()
