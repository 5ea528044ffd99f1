"""Which tests execute the line of a mutation, in the order in which they are worth running."""

import bisect
import functools
import json
from collections import Counter, defaultdict
from itertools import accumulate
from pathlib import Path

import coverage
from operators import Mutation
from warm import Plan

FIRST_TESTS = 8
FIRST_CASES = 2


class TestsByLine:
    """What a recorded run tells about tests: the lines they execute and their CPU seconds.

    Args:
        folder: What `contexts.py` has recorded.
        max_seconds: The CPU seconds of one mutation's tests, at most.
    """

    def __init__(self, folder: Path, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self.costs: dict[str, float] = {}
        for path in folder.glob("seconds.*"):
            self.costs |= json.loads(path.read_text())
        self._files: dict[str, list[tuple[coverage.CoverageData, str]]] = defaultdict(list)
        for path in folder.glob("lines.*"):
            data = coverage.CoverageData(str(path))
            data.read()
            for name in data.measured_files():
                self._files[name[name.rindex("/lance_stream/") + 1 :]].append((data, name))

    def plan(self, mutation: Mutation) -> Plan:
        """Return the tests of a mutation; those of its module if none executes its line."""
        lines = self._tests_by_line(mutation.path)
        first, last = mutation.lines
        names = set().union(*(lines.get(line, ()) for line in range(first, last + 1)))
        is_at_import = "" in names
        if not names - {""}:
            names = set().union(*lines.values())
        ordered = self._in_order(names & self.costs.keys(), mutation.path)
        total = list(accumulate(map(self.costs.__getitem__, ordered)))
        number = max(FIRST_TESTS, bisect.bisect(total, self._max_seconds))
        return Plan(mutation, ordered[:number], is_at_import)

    @functools.cache  # noqa: B019  # there is one object
    def _tests_by_line(self, path: str) -> dict[int, set[str]]:
        lines: dict[int, set[str]] = defaultdict(set)
        for data, name in self._files[path]:
            for line, tests in data.contexts_by_lineno(name).items():
                lines[line].update(tests)
        return lines

    def _in_order(self, names: set[str], path: str) -> list[str]:
        """Return the tests of a module, those that are likely to notice a change of it first.

        These are some cases of each test, of the module's own tests, of its package's, of others;
        within these the cheapest.
        """
        _, package, *_, file = path.split("/")
        num_cases: Counter[str] = Counter()
        ranks: dict[str, tuple[bool, bool, bool, float]] = {}
        for name in sorted(names, key=self.costs.__getitem__):
            test = name.partition("[")[0]
            num_cases[test] += 1
            is_of_package = name.startswith(f"tests/{package}/")
            is_of_module = test.partition("::")[0].endswith(f"/test_{file}")
            is_late = num_cases[test] > FIRST_CASES
            ranks[name] = is_late, not is_of_module, not is_of_package, self.costs[name]
        return sorted(names, key=lambda name: ranks[name])
