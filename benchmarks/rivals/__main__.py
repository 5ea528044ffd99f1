"""Compares the alternatives, Delta and Iceberg, with lance-stream in one run.

    make bench-rivals      or      python -m benchmarks.rivals --rivals-python PYTHON

Delta and Iceberg have jars for PySpark 4.1 at most, so there are two runs of `benchmarks.sink` on
the same batches, one after the other: on the newest PySpark ours, pylance and Spark's parquet take
turns; on PySpark 4.1, in a separate environment, all five do. The output is a Markdown table and a
picture. A rival's time is shown as a multiple of ours on the same PySpark, in turns, and of ours on
the newest.

Settings: `local[2]`, 8 GB for the driver, unix sockets to Python workers, two shuffle partitions.
Iceberg: format 2, merge-on-read. Delta: deletion vectors and its change data feed, as our tables
have one; two state partitions instead of 50. No table is compacted during the run. The feed is that
of the last upsert: 45,000 pre-images and post-images, and 5,000 inserts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rivals.picture import Bar, draw
from benchmarks.sinks.contenders import CONTENDERS, Delta, Iceberg, Ours, Parquet, Pylance
from benchmarks.sinks.turns import VERBS, Figures

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "rivals.svg"


def run(python: str, names: list[str], more: list[str], folder: Path) -> tuple[str, Figures]:
    """Run the benchmark of sinks with some Python; return its PySpark's version, and the figures.

    The output of Spark and Ivy goes to a log, which is shown if the run fails.
    """
    result, log = folder / "figures.json", folder / "log.txt"
    with log.open("w") as errors:
        process = subprocess.run(
            [python, "-m", "benchmarks.sink", "--json", str(result), "--with", *names, *more],
            cwd=ROOT,
            stderr=errors,
            check=False,
        )
    if process.returncode:
        sys.exit(f"{log.read_text()[-4000:]}\nthe run of {python} failed")
    read: dict[str, Any] = json.loads(result.read_text())
    return read["pyspark"], Figures(read["seconds"], read["phases"])


def table(newest: tuple[str, Figures], theirs: tuple[str, Figures]) -> list[str]:
    """Return the lines of a table of each sink's time as a multiple of ours."""
    new_version, new = newest
    old_version, old = theirs
    lines = [
        "| sink | PySpark | " + " | ".join(VERBS) + " |",
        "|---|---|" + "---|" * len(VERBS),
    ]
    for version, figures in ((new_version, new), (old_version, old)):
        names = {name for times in figures.seconds.values() for name in times}
        for name in (contender for contender in CONTENDERS if contender in names):
            cells = [_cell(figures, new, verb, name) for verb in VERBS]
            lines.append(f"| {name} | {version} | " + " | ".join(cells) + " |")
    return lines


def _cell(figures: Figures, newest: Figures, verb: str, name: str) -> str:
    """Return a median, and its ratios to ours: in the same run, and in that of the newest."""
    median = figures.median(verb, name)
    ours, ours_newest = figures.median(verb, Ours.name), newest.median(verb, Ours.name)
    if median is None or ours is None or ours_newest is None:
        return ""
    duration = f"{median:.1f} s" if median >= 10 else f"{median * 1000:.0f} ms"
    if name == Ours.name:
        return f"**{duration}**"
    ratio = f"{median / ours:.1f}x"
    return (
        f"{duration}: {ratio}"
        if figures is newest
        else f"{duration}: {ratio}, {median / ours_newest:.1f}x"
    )


def bars(newest: tuple[str, Figures], theirs: tuple[str, Figures]) -> dict[str, list[Bar]]:
    """Return the bars of each verb: each sink on the newest PySpark that it supports."""
    drawn: dict[str, list[Bar]] = {}
    for verb in VERBS:
        ours = newest[1].median(verb, Ours.name)
        for name in (Ours.name, Pylance.name, Parquet.name, Iceberg.name, Delta.name):
            version, figures = newest if newest[1].median(verb, name) is not None else theirs
            median = figures.median(verb, name)
            if median is not None and ours is not None:
                label = f"{name}, PySpark {version.rsplit('.', 1)[0]}"
                drawn.setdefault(verb, []).append(Bar(label, median / ours, name == Ours.name))
    return drawn


def main() -> None:
    """Run both, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rivals-python", required=True, help="of an environment of PySpark 4.1")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments, more = parser.parse_known_args()
    ours = [Ours.name, Pylance.name, Parquet.name]
    with tempfile.TemporaryDirectory(prefix="lance-stream-rivals-") as folder:
        newest = run(sys.executable, ours, more, Path(folder))
        theirs = run(arguments.rivals_python, [*ours, Iceberg.name, Delta.name], more, Path(folder))
    print(
        "\nMedians inside foreachBatch. x: how many times as long as ours takes, in the same run;"
    )
    print(f"the second one: as ours takes on PySpark {newest[0]}.\n")
    print("\n".join(table(newest, theirs)))
    arguments.picture.write_text(draw(bars(newest, theirs)))
    print(f"\n{arguments.picture} shows it")


if __name__ == "__main__":
    main()
