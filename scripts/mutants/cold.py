"""Run the tests of one mutation in this new process, until one fails.

python scripts/mutants/cold.py PLAN

PLAN is JSON: the tests in their order, the options of pytest, and a file that takes the name of the
test that fails.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest


class _Chosen:
    def __init__(self, names: list[str], failed: Path) -> None:
        self._positions = {name: position for position, name in enumerate(names)}
        self._failed = failed

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self._positions]
        items[:] = sorted(chosen, key=lambda item: self._positions[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.write_text(report.nodeid)


def main(plan: Path) -> int:
    """Run the tests, and return the exit code of pytest."""
    names, options, failed = json.loads(plan.read_text())
    files = dict.fromkeys(name.partition("::")[0] for name in names)
    try:
        return pytest.main(["-x", *options, *files], plugins=[_Chosen(names, Path(failed))])
    except Exception:  # the package cannot be imported by a conftest
        traceback.print_exc()
        return pytest.ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
