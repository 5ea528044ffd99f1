"""Measure how many mutations of the modules that decide correctness the tests notice.

    make mutants                                     300 mutations of all packages
    make mutants MUTANTS="--number 50 upsert feed"   50 of two packages

The tests that execute the line of a mutation run with it, the likeliest and cheapest first, until
one fails (`warm.py`). Which tests these are is recorded once: by a run of the quick tests that need
neither Spark nor a server. The same seed chooses the same mutations as long as their functions stay
the same. A mutation that changes nothing observable has a line in equivalents.txt, with the reason.
"""

import argparse
import hashlib
import heapq
import importlib
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TextIO

import pytest
from contexts import PACKAGES
from operators import Mutation, equivalents, mutations
from tests_by_line import TestsByLine
from warm import TESTS, Fate, MutationRunner, Plan, pytest_options

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lance_stream"
# What decides nothing, needs servers that no recorded test has, or runs in a process of its own.
EXCLUDED = (
    "*/__init__.py", "*/manifest_stores/postgresql.py", "*/manifest_stores/dynamodb.py",
    "snapshot/html.py", "maintenance/indices/child.py",
)  # fmt: skip
PRELOADED = (
    "hypothesis", "pandas", "pyarrow.compute", "pyarrow.parquet",
    "google.protobuf.message", "pyroaring", "fsspec", "cachetools", "click", "rich",
)  # fmt: skip


def main() -> None:
    """Choose mutations, run their tests, and print the score."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="such as upsert or table")
    parser.add_argument("--number", type=int, default=300, help="how many mutations")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants")
    parser.add_argument("--only", default="", help="only mutations whose name has this text")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for each, at most")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    lines = options.folder / "lines"
    if not any(lines.glob("seconds.*")):
        record(lines, options.processes)
    sample = choose(options.packages, options.number, options.seed, options.only)
    tests = TestsByLine(lines, options.seconds)
    plans = [tests.plan(mutation) for mutation in sample]
    with (options.folder / "fates.txt").open("w", buffering=1) as log:
        report(run(plans, tests.costs, options.folder, options.processes), options.seed, log)


def record(folder: Path, processes: int) -> None:
    """Run the quick tests, and keep which lines each of them executes."""
    options = ["-q", "-n", str(processes), "--dist", "loadgroup", "--quick", "--ci", "-m", TESTS]
    recording = ["-p", "contexts", "--contexts", str(folder)]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *recording, "tests"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )


def choose(packages: list[str], number: int, seed: str, only: str) -> list[Mutation]:
    """Return a sample: of each package as many as it has lines, and at least five."""

    def rank(mutation: Mutation) -> bytes:
        return hashlib.sha256(f"{seed} {mutation}".encode()).digest()

    omitted = equivalents()
    by_package: dict[str, list[Mutation]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for package in packages:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            if not any(fnmatch(str(path.relative_to(PACKAGE)), some) for some in EXCLUDED):
                source = path.read_bytes()
                by_package[package] += mutations(str(path.relative_to(ROOT)), source)
                sizes[package] = sizes.get(package, 0) + source.count(b"\n")
    sample: list[Mutation] = []
    for package, several in by_package.items():
        share = max(5, round(number * sizes[package] / sum(sizes.values())))
        candidates = [
            mutation
            for mutation in several
            if str(mutation) not in omitted and only in str(mutation)
        ]
        sample += heapq.nsmallest(share, candidates, key=rank)
    return sorted(sample, key=rank)


def run(plans: list[Plan], costs: dict[str, float], folder: Path, processes: int) -> Iterator[Fate]:
    """Yield what becomes of each mutation."""
    for name in PRELOADED:  # imported once, for all processes
        importlib.import_module(name)
    context = get_context("fork")
    running: dict[Connection, Path] = {}
    for number in range(processes):
        copy = folder / f"copy{number}"
        update_copy(copy)
        receiver, sender = context.Pipe(duplex=False)
        share = plans[number::processes]
        context.Process(target=run_share, args=(share, costs, copy, sender)).start()
        sender.close()
        running[receiver] = copy
    while running:
        for receiver in wait(list(running)):
            assert isinstance(receiver, Connection)
            try:
                fate = receiver.recv()
            except EOFError:
                fate = None
            if isinstance(fate, Fate):
                yield fate
                continue
            copy = running.pop(receiver)
            if fate != pytest.ExitCode.OK:
                print((copy / "output.txt").read_text(errors="replace")[-3000:])
                raise SystemExit(f"pytest ended with {fate}; its output is in {copy}/output.txt")


def run_share(plans: list[Plan], costs: dict[str, float], copy: Path, sender: Connection) -> None:
    """Run the tests of some mutations in one copy of the checkout, and send their fates."""
    os.chdir(copy)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    files = dict.fromkeys(name.partition("::")[0] for plan in plans for name in plan.tests)
    files = {name: None for name in sorted(files) if Path(name).is_file()}
    runner = MutationRunner(copy, plans, costs, sender.send)
    sender.send(pytest.main([*pytest_options(copy), *files], plugins=[runner]) if plans else 0)


def update_copy(copy: Path) -> None:
    """Make a copy of the checkout; what Python has compiled there stays, as it takes long."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = set(subprocess.check_output(listing, cwd=ROOT, text=True).splitlines())
    names = {name for name in names if (ROOT / name).is_file()}
    for path in [path for path in copy.rglob("*") if path.is_file() and path.suffix != ".pyc"]:
        if str(path.relative_to(copy)) not in names:
            path.unlink()
    for name in names:
        old, new = copy / name, ROOT / name
        if not old.exists() or old.stat().st_mtime_ns != new.stat().st_mtime_ns:
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(new, old)


def report(fates: Iterator[Fate], seed: str, log: TextIO) -> None:
    """Print what survives at once, and in the end the score of each package."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: list[float] = []
    unusable: set[str] = set()
    for fate in fates:
        unusable.update(fate.unusable)
        mutation = fate.mutation
        counts[mutation.path.split("/")[1]][fate.word] += 1
        seconds.append(fate.seconds)
        log.write(f"{fate.word}  {fate.seconds:.1f}  {mutation}  {fate.test}\n")
        if not fate.word.startswith("killed"):
            print(f"{fate.word}  {mutation.path}:{mutation.lines[0]}\n  {mutation}", flush=True)
    for name in sorted(unusable):
        print(f"not used, as it fails without a mutation, too: {name}")
    total: Counter[str] = Counter()
    for package, words in counts.items():
        total += words
        print(f"{package:<12} {_score(words)}")
    print(f"{'all':<12} {_score(total)}, seed {seed}: {dict(total)}")
    if seconds:
        median = statistics.median(seconds)
        print(f"{sum(seconds):.0f} CPU seconds, the median mutation {median:.1f}")


def _score(words: Counter[str]) -> str:
    killed = words["killed"] + words["killed by its time"]
    return f"{killed} of {words.total()} killed ({killed / max(words.total(), 1):.0%})"


if __name__ == "__main__":
    main()
