"""Measure how many mutations of the modules that decide correctness the tests notice.

    make mutants                                     300 mutations of all packages
    make mutants MUTANTS="--number 50 upsert feed"   50 of two packages

Each mutation of the sample is made in a copy of the checkout, and the tests that execute its line
run there, the cheapest first, until one fails. Which they are is recorded once: by a run of the
quick tests that need neither Spark nor a server. The same seed chooses the same mutations as long
as their functions stay the same. A mutation that changes nothing observable has a line in
equivalents.txt, with the reason.
"""

import argparse
import bisect
import hashlib
import heapq
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from itertools import accumulate
from pathlib import Path
from typing import Any

import coverage
from operators import Mutation, mutations

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lance_stream"
PACKAGES = (
    "commit", "table", "upsert", "feed", "write", "maintenance", "snapshot", "read", "derived",
    "quarantine", "expressions",
)  # fmt: skip
# What decides nothing, needs servers that no recorded test has, or runs in a process of its own.
LEFT_OUT = (
    "*/__init__.py", "*/manifest_stores/postgresql.py", "*/manifest_stores/dynamodb.py",
    "snapshot/html.py", "maintenance/indices/child.py",
)  # fmt: skip
TESTS = "not spark and not slow and not server and not cluster and not recipes"
FIRST_TESTS = 8
FIRST_CASES = 2
PRELOADED = (
    "pytest", "hypothesis", "pandas", "pyarrow.compute", "pyarrow.parquet",
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
    tests = Tests(lines, options.seconds)
    report(run(sample, tests, options.folder, options.processes), options.seed)


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

    reasons = dict(equivalents())
    found: dict[str, list[Mutation]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for package in packages:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            if not any(fnmatch(str(path.relative_to(PACKAGE)), some) for some in LEFT_OUT):
                source = path.read_bytes()
                found[package] += mutations(str(path.relative_to(ROOT)), source)
                sizes[package] = sizes.get(package, 0) + source.count(b"\n")
    unused = set(reasons) - {str(each) for some in found.values() for each in some}
    if unused and not set(PACKAGES).difference(packages):
        names = "\n".join(sorted(unused))
        raise SystemExit(f"equivalents.txt has mutations that no longer exist:\n{names}")
    sample: list[Mutation] = []
    for package, several in found.items():
        share = max(5, round(number * sizes[package] / sum(sizes.values())))
        left = [each for each in several if str(each) not in reasons and only in str(each)]
        sample += heapq.nsmallest(share, left, key=rank)
    return sorted(sample, key=rank)


def equivalents() -> Iterator[tuple[str, str]]:
    """Yield the mutations that change nothing observable, and why."""
    for line in (Path(__file__).parent / "equivalents.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.rpartition(" | ")
            yield name, reason


class Tests:
    """Which tests execute a line, and what they cost."""

    def __init__(self, folder: Path, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._seconds: dict[str, float] = {}
        for path in folder.glob("seconds.*"):
            self._seconds |= json.loads(path.read_text())
        self._data = [coverage.CoverageData(str(path)) for path in folder.glob("lines.*")]
        self._files: dict[str, list[tuple[coverage.CoverageData, str]]] = defaultdict(list)
        for data in self._data:
            data.read()
            for name in data.measured_files():
                self._files[name[name.rindex("/lance_stream/") + 1 :]].append((data, name))

    def of(self, mutation: Mutation) -> list[str]:
        """Return the tests of a mutation; those of its module if none executes its line."""
        lines: dict[int, set[str]] = defaultdict(set)
        for data, name in self._files[mutation.path]:
            for line, tests in data.contexts_by_lineno(name).items():
                lines[line].update(tests)
        first, last = mutation.lines
        names = set().union(*(lines.get(line, ()) for line in range(first, last + 1)))
        if not names - {""}:
            names = set().union(*lines.values())
        ordered = self._in_order(names & self._seconds.keys(), mutation.path.split("/")[1])
        total = list(accumulate(map(self.seconds, ordered)))
        return ordered[: max(FIRST_TESTS, bisect.bisect(total, self._most_seconds))]

    def _in_order(self, names: set[str], package: str) -> list[str]:
        """Return first some cases of each test, and those of the package's own tests first of all.

        Within these the cheapest is first.
        """
        num_cases: Counter[str] = Counter()
        ranks: dict[str, tuple[bool, bool, float]] = {}
        for name in sorted(names, key=self.seconds):
            test = name.partition("[")[0]
            num_cases[test] += 1
            is_own = name.startswith(f"tests/{package}/")
            ranks[name] = (num_cases[test] > FIRST_CASES, not is_own, self.seconds(name))
        return sorted(names, key=lambda name: ranks[name])

    def seconds(self, name: str) -> float:
        """Return what a test costs."""
        return self._seconds[name]


def run(
    sample: list[Mutation], tests: Tests, folder: Path, processes: int
) -> Iterator[tuple[Mutation, str]]:
    """Yield each mutation with its fate: killed, survived, untested, or killed by its time."""
    for name in PRELOADED:  # imported once, for all children
        importlib.import_module(name)
    free = [folder / f"copy{number}" for number in range(processes)]
    for copy in free:
        update_copy(copy)
    waiting = list(reversed(sample))
    children: dict[int, _Child] = {}
    while waiting or children:
        while waiting and free:
            mutation = waiting.pop()
            names = tests.of(mutation)
            if names:
                child = _Child(mutation, names, sum(map(tests.seconds, names)), free.pop())
                children[child.pid] = child
            else:
                yield mutation, "untested"
        time.sleep(0.05)
        for pid, child in list(children.items()):
            fate = child.fate()
            if fate:
                del children[pid]
                free.append(child.copy)
                yield child.mutation, fate


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


class _Child:
    """A process that runs the tests of one mutation in a copy of the checkout."""

    newest = 0

    def __init__(self, mutation: Mutation, names: list[str], seconds: float, copy: Path) -> None:
        self.mutation, self.copy = mutation, copy
        self._path = copy / mutation.path
        self._source, self._times = self._path.read_bytes(), self._path.stat()
        self._path.write_bytes(mutation.apply(self._source))
        _Child.newest = max(_Child.newest + 1, int(time.time()))
        os.utime(self._path, (_Child.newest,) * 2)  # by which Python knows what it has compiled
        self._limit = 60 + 3 * seconds
        self._stop = time.monotonic() + 120 + 10 * seconds
        self.pid = os.fork()
        if not self.pid:
            self._run(names)

    def _run(self, names: list[str]) -> None:
        code = 99
        try:
            os.setsid()
            os.chdir(self.copy)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(self._limit),) * 2)
            sys.path[0] = str(self.copy)
            os.environ["PYTHONPATH"] = str(self.copy)
            code = self._test(names)
        except Exception:  # a module that cannot be imported
            code = 1
        finally:
            os._exit(code)

    def _test(self, names: list[str]) -> int:
        import pytest

        module = self.mutation.path.removesuffix(".py").replace("/", ".")
        assert importlib.import_module(module).__file__ == str(self._path)
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--tb=short",
            "--quick",
            "--ci",
        ]
        options += [f"--rootdir={self.copy}", f"--basetemp={self.copy / 'temporary'}"]
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        return pytest.main([*options, *files], plugins=[_Chosen(names)])

    def fate(self) -> str:
        """Return what became of it; nothing while its tests run."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() > self._stop
        if not pid and not late:
            return ""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not pid:
            os.waitpid(self.pid, 0)
        self._path.write_bytes(self._source)
        os.utime(self._path, ns=(self._times.st_atime_ns, self._times.st_mtime_ns))
        code = os.waitstatus_to_exitcode(status)
        if late or code < 0:
            return "killed by its time"
        output = (self.copy / "output.txt").read_text(errors="replace")
        if code in {1, 2} or "loading conftest" in output:
            return "killed"
        fates = {0: "survived", 5: "untested"}
        return fates.get(code, f"not run (pytest ended with {code}):\n{output}\n")


class _Chosen:
    """A plugin that runs some tests, in their order. Those that no longer exist are left out."""

    def __init__(self, names: list[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])


def report(fates: Iterator[tuple[Mutation, str]], seed: str) -> None:
    """Print what survives at once, and in the end the score of each package."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutation, fate in fates:
        counts[mutation.path.split("/")[1]][fate] += 1
        if not fate.startswith("killed"):
            print(f"{fate}  {mutation.path}:{mutation.lines[0]}\n  {mutation}", flush=True)
    total: Counter[str] = Counter()
    for package, fate in counts.items():
        total += fate
        print(f"{package:<12} {_score(fate)}")
    print(f"{'all':<12} {_score(total)}, seed {seed}: {dict(total)}")


def _score(fates: Counter[str]) -> str:
    killed = fates["killed"] + fates["killed by its time"]
    return f"{killed} of {fates.total()} killed ({killed / max(fates.total(), 1):.0%})"


if __name__ == "__main__":
    main()
