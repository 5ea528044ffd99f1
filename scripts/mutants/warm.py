"""Run the tests of mutations in forks of one process that has collected all of them.

A fork of this process has imported the package and its tests already, so a mutation costs what its
tests cost. It replaces the code of the mutated module's functions in memory, and the file beneath
for processes that the tests start. What runs at import (a default argument, a class body, a table)
takes effect only in a new process: see `cold.py`.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from operators import Mutation

TESTS = "not spark and not slow and not server and not cluster and not recipes"
_IS_OF_FUNCTION = 0x1  # CO_OPTIMIZED: not the code of a module or of a class body
_CANNOT_COLLECT = {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR}
_TIMED_OUT = {signal.SIGPROF, signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL}


def pytest_options(copy: Path) -> list[str]:
    """Return the options of pytest for the tests of a copy of the checkout."""
    folders = [f"--rootdir={copy}", f"--basetemp={copy / 'temporary'}"]
    return [*folders, "-p", "no:cacheprovider", "-q", "--tb=short", "--quick", "--ci", "-m", TESTS]


class Plan(NamedTuple):
    """The tests of a mutation.

    Attributes:
        mutation: The mutation.
        tests: Their names, in the order in which they run.
        is_at_import: Whether an import has executed the line, too.
    """

    mutation: Mutation
    tests: list[str]
    is_at_import: bool


class Fate(NamedTuple):
    """What became of a mutation.

    Attributes:
        mutation: The mutation.
        word: killed, survived, untested, or killed by its time.
        test: The test that noticed it.
        seconds: The CPU seconds of its tests.
        unusable: Tests that failed without the mutation, too.
    """

    mutation: Mutation
    word: str
    test: str = ""
    seconds: float = 0.0
    unusable: tuple[str, ...] = ()


class MutationRunner:
    """A plugin of pytest that runs the tests of mutations instead of what it has collected.

    Args:
        copy: The copy of the checkout that pytest collects in.
        plans: The mutations with their tests.
        costs: The CPU seconds of each test.
        report: Takes each fate.
    """

    def __init__(
        self,
        copy: Path,
        plans: list[Plan],
        costs: dict[str, float],
        report: Callable[[Fate], None],
    ) -> None:
        self._copy, self._plans, self._costs, self._report = copy, plans, costs, report
        self._items: dict[str, Any] = {}
        self._passes: dict[str, bool] = {}
        self._newest_time = int(time.time())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each mutation."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions_below(self._copy / "lance_stream")
        with (self._copy / "position").open("w+b", 0) as self._position:
            for plan in self._plans:
                fate = self._fate(plan)
                unusable = [name for name in plan.tests if not self._passes.get(name, True)]
                self._report(fate._replace(unusable=tuple(unusable)))
        return True

    def _fate(self, plan: Plan) -> Fate:
        mutation, names = plan.mutation, [name for name in plan.tests if name in self._items]
        seconds = 0.0
        while names := [name for name in names if self._passes.get(name, True)]:
            with self._mutated(mutation) as source:
                replaced = replacements(source, mutation)
                code = 0
                if replaced is not None:
                    code, test, cost = self._run(names, replaced)
                    seconds += cost
                if code == 0 and (replaced is None or plan.is_at_import):
                    code, test, cost = self._run_in_new_process(names)
                    seconds += cost
            if code == 0:
                return Fate(mutation, "survived", seconds=seconds)
            if code in _CANNOT_COLLECT:
                return Fate(mutation, "killed", "at import", seconds)
            if code == 1 and test:
                # A test that fails without the mutation, too, says nothing about it.
                if test not in self._passes:
                    code_without, _, cost = self._run([test], [])
                    self._passes[test] = code_without == 0
                    seconds += cost
                if self._passes[test]:
                    return Fate(mutation, "killed", test, seconds)
            elif -code in _TIMED_OUT:
                return Fate(mutation, "killed by its time", test, seconds)
            else:
                return Fate(mutation, f"not run (code {code})", test, seconds)
        return Fate(mutation, "untested", seconds=seconds)

    @contextmanager
    def _mutated(self, mutation: Mutation) -> Iterator[bytes]:
        """Mutate the file for the processes that tests start; yield its source without that."""
        path = self._copy / mutation.path
        source, times = path.read_bytes(), path.stat()
        self._newest_time += 1
        path.write_bytes(mutation.apply(source))
        os.utime(path, (self._newest_time,) * 2)  # by which Python knows what it has compiled
        try:
            yield source
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(
        self, names: list[str], replaced: list[tuple[CodeType, CodeType]]
    ) -> tuple[int, str, float]:
        """Run tests in a fork; return its exit code, the last test, and its CPU seconds."""
        pid = os.fork()
        if not pid:
            code = 99
            try:
                os.setsid()
                for old, new in replaced:
                    for function in self._functions[_name_of(old)]:
                        function.__code__ = new
                code = self._run_here(names)
            finally:
                os._exit(code)
        _, status, usage = os.wait4(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        test = names[int(os.pread(self._position.fileno(), 8, 0) or b"0")]
        return os.waitstatus_to_exitcode(status), test, usage.ru_utime + usage.ru_stime

    def _run_here(self, names: list[str]) -> int:
        items = [self._items[name] for name in names]
        for position, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            os.pwrite(self._position.fileno(), b"%08d" % position, 0)
            cost = self._costs[item.nodeid]
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * cost)
            signal.setitimer(signal.ITIMER_REAL, 60 + 20 * cost)
            self._session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                return 1
        return 0

    def _run_in_new_process(self, names: list[str]) -> tuple[int, str, float]:
        """Run tests in a new process; return its exit code, the failed test, its CPU seconds."""
        plan, failed = self._copy / "plan.json", self._copy / "failed"
        plan.write_text(json.dumps([names, pytest_options(self._copy), str(failed)]))
        failed.write_text("")
        limit = int(30 + 3 * sum(map(self._costs.__getitem__, names)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cold.py")), str(plan)],
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        try:
            code = process.wait(60 + 5 * limit)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return code, failed.read_text(), seconds


def _functions_below(folder: Path) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all functions whose code lies in a folder, by where that is."""
    functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # what is frozen is not listed
    for value in gc.get_objects():
        if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(str(folder)):
            functions[_name_of(value.__code__)].append(value)
    gc.freeze()
    return functions


def _name_of(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def replacements(source: bytes, mutation: Mutation) -> list[tuple[CodeType, CodeType]] | None:
    """Return each function's code with the mutated one; None if it takes a new process.

    It does if the mutation changes what runs at import, or what a closure that exists already
    captures.
    """
    path = str(Path(mutation.path).absolute())
    old = compile(source, path, "exec")
    try:
        new = compile(mutation.apply(source), path, "exec")
    except SyntaxError:
        return None
    return _paired(old, new)


def _paired(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Return the pairs of two codes with the same structure, outermost functions only."""
    children = [
        [value for value in code.co_consts if isinstance(value, CodeType)] for code in (old, new)
    ]
    if old.co_flags & _IS_OF_FUNCTION:
        if old.co_freevars != new.co_freevars:
            return None
        pairs = [(old, new)]
        if len(children[0]) != len(children[1]):
            return pairs  # nothing that is nested has its match; new calls make it anew
    else:
        if _at_import(old) != _at_import(new):
            return None
        pairs = []
    for pair in zip(*children, strict=True):
        nested = _paired(*pair)
        if nested is None:
            return None
        pairs += nested
    return pairs


def _at_import(code: CodeType) -> tuple[object, ...]:
    plain = [(type(value), value) for value in code.co_consts if not isinstance(value, CodeType)]
    names = [value.co_name for value in code.co_consts if isinstance(value, CodeType)]
    return code.co_code, repr(plain), code.co_names, names
