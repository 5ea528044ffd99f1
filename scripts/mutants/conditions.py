"""Find the mutations of conditions that no test could notice, since they never decide anything.

    python scripts/mutants/conditions.py expressions feed     with the quick tests of these packages

A sample of mutations says how good the tests are; this says where they are not. At import, each
condition of the mutated packages is rewritten so that it records what it has decided:

- a part of `and` or `or` was decisive: without it, the value would have been another. The later
  parts are evaluated for that, too, unless they assign or change something;
- the condition of an `if`, a conditional expression or a comprehension has been true, and false;
- the sides of a comparison by order have been equal, so that `<` and `<=` differ.

A mutation that was never decisive survives for certain; one that was may survive nevertheless.
"""

import argparse
import ast
import json
import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from contexts import PACKAGES
from operators import equivalents, mutations
from warm import TESTS

ROOT = Path(__file__).parents[2]
_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_RECORDER = "_lance_stream_conditions"
_CHANGING = {
    "add",
    "append",
    "acquire",
    "begin_work",
    "extend",
    "next",
    "pop",
    "popitem",
    "remove",
    "setdefault",
}
undecided: set[str] = set()
"""The names of the mutations that have not been decisive yet."""


def main() -> None:
    """Run tests, and print the mutations of conditions that none of them decides."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="such as upsert or table")
    parser.add_argument("--tests", nargs="*", help="by default those of the packages")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants" / "conditions")
    parser.add_argument("--processes", default="2")
    options = parser.parse_args()
    tests = options.tests or [f"tests/{name}" for name in options.packages]
    tests = [path for path in tests if (ROOT / path.partition("::")[0]).exists()]
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in options.folder.glob("*.json"):
        path.unlink()
    arguments = ["-q", "-n", options.processes, "--dist", "loadgroup", "--quick", "--ci"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conditions", *arguments, "-m", TESTS, *tests],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
            "LANCE_STREAM_CONDITIONS": str(options.folder),
        },
    )
    decided: set[str] = set()
    for path in options.folder.glob("*.json"):
        decided.update(json.loads(path.read_text()))
    omitted = equivalents()
    for package in options.packages:
        remaining: list[str] = []
        count = 0
        for path in sorted((ROOT / "lance_stream" / package).rglob("*.py")):
            names = {*_Rewriting(path).names.values()} - omitted
            count += len(names)
            remaining += sorted(names - decided)
        print(f"\n{package}: {len(remaining)} of {count} mutations of conditions never decide")
        print("\n".join(f"  {name}" for name in remaining))


def pytest_sessionfinish() -> None:
    """Keep what this process has decided."""
    folder = Path(os.environ["LANCE_STREAM_CONDITIONS"])
    (folder / f"{os.getpid()}.json").write_text(json.dumps(sorted(_seen - undecided)))


_seen: set[str] = set()


class _Finder(MetaPathFinder):
    """Rewrites the modules of the mutated packages when they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if name.partition(".")[2].partition(".")[0] not in PACKAGES or spec is None:
            return None
        if name.startswith("lance_stream.") and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
            return spec
        return None


class _Loader(SourceFileLoader):
    def get_code(self, _: str) -> CodeType:
        rewriting = _Rewriting(Path(self.path))
        _seen.update(rewriting.names.values())
        undecided.update(rewriting.names.values())
        return compile(rewriting.tree(), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _RECORDER, sys.modules[__name__])
        super().exec_module(module)


class _Rewriting(ast.NodeTransformer):
    """Rewrites the conditions of a module.

    Attributes:
        names: The mutations of conditions, by the span of the condition and their new text.
    """

    def __init__(self, path: Path) -> None:
        self._source = path.read_bytes()
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._all = {
            (mutation.span, mutation.after): str(mutation)
            for mutation in mutations(str(path.relative_to(ROOT)), self._source)
        }
        self.names: dict[tuple[tuple[int, int], str], str] = {}
        self._is_truth: set[tuple[int, int]] = set()
        for node in ast.walk(ast.parse(self._source)):
            self._is_truth.update(self._span(part) for part in _truths(node))
            for after in _afters(node):
                key = self._span(node), after
                if key in self._all and "TYPE_CHECKING" not in self._all[key]:
                    self.names[key] = self._all[key]
            for test in _tests(node):
                for after in ("True", "False"):
                    if (key := (self._span(test), after)) in self._all:
                        self.names[key] = self._all[key]

    def tree(self) -> ast.Module:
        """Return the rewritten module."""
        return ast.fix_missing_locations(self.visit(ast.parse(self._source)))

    def _span(self, node: Any) -> tuple[int, int]:
        if not hasattr(node, "lineno"):
            return (0, 0)
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _name(self, node: ast.AST, after: str) -> str | None:
        return self.names.get((self._span(node), after))

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node and all below it."""
        tests = [
            (test, self._name(test, "True"), self._name(test, "False")) for test in _tests(node)
        ]
        names = [self._name(node, after) for after in _afters(node)]
        is_truth = self._span(node) in self._is_truth
        node = self.generic_visit(node)
        if isinstance(node, ast.BoolOp) and any(names):
            node = _rewritten_parts(node, names, is_truth)
        elif isinstance(node, ast.Compare) and any(names):
            node = _rewritten_comparison(node, names)
        for index, (_, as_true, as_false) in enumerate(tests):
            if as_true or as_false:
                if isinstance(node, ast.comprehension):
                    node.ifs[index] = _call("has", _text(as_true), _text(as_false), node.ifs[index])
                else:
                    node.test = _call("has", _text(as_true), _text(as_false), node.test)  # type: ignore[attr-defined]
        return node


def _afters(node: ast.AST) -> Iterator[str]:
    """Yield the texts that `operators` puts in the place of a condition's parts or operator."""
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            after = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield f"({ast.unparse(after)})"
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _ORDERS:
        others = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
        ops = [others[type(node.ops[0])](), *node.ops[1:]]
        yield f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"


def _tests(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _truths(node: ast.AST) -> list[ast.expr]:
    """Return the expressions below a node of which only the truth matters."""
    if isinstance(node, ast.While):
        return [node.test]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return _tests(node)


def _text(value: object) -> ast.Constant:
    return ast.Constant(value)


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    name = ast.Name(_RECORDER, ast.Load())
    return ast.Call(ast.Attribute(name, function, ast.Load()), list(arguments), [])


def _later(value: ast.expr) -> ast.expr:
    arguments = ast.arguments([], [], None, [], [], None, [])
    return ast.Lambda(arguments, value)


def _can_wait(node: ast.expr) -> bool:
    """Whether an expression may be moved into a function that is called now, or in addition."""
    for part in ast.walk(node):
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(part, ast.Call):
            called = part.func
            name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
            if name in _CHANGING or name == "super":
                return False
    return True


def _rewritten_parts(node: ast.BoolOp, names: list[str | None], is_truth: bool) -> ast.expr:
    if not all(map(_can_wait, node.values[1:])):
        return node
    first, *rest = node.values
    parts = ast.Tuple([_text(name) for name in names], ast.Load())
    is_and = _text(isinstance(node.op, ast.And))
    return _call("decide", parts, is_and, _text(is_truth), first, *map(_later, rest))


def _rewritten_comparison(node: ast.Compare, names: list[str | None]) -> ast.expr:
    if not all(map(_can_wait, node.comparators[1:])):
        return node
    left, middle, rest = node.left, node.comparators[0], node.comparators[1:]
    first = _call("compare", _text(names[0]), _text(type(node.ops[0]).__name__), left, middle)
    if not rest:
        return first
    if not _can_wait(middle):
        return node
    others = ast.Compare(middle, node.ops[1:], rest)
    return ast.BoolOp(ast.And(), [first, others])


def has(as_true: str | None, as_false: str | None, value: Any) -> Any:
    """Record that a condition has a value; it is noticed where it would have the other one."""
    if as_true in undecided or as_false in undecided:
        undecided.discard(as_false if value else as_true)  # type: ignore[arg-type]
    return value


def compare(name: str, order: str, left: Any, right: Any) -> Any:
    """Record whether the sides of a comparison are equal, at least in one place."""
    if name in undecided:
        with suppress(Exception):
            is_equal = left == right
            if is_equal.any() if hasattr(is_equal, "any") else is_equal:
                undecided.discard(name)
    return _ORDERS[getattr(ast, order)](left, right)


def decide(
    names: Sequence[str | None],
    is_and: bool,
    is_truth: bool,
    first: Any,
    *rest: Callable[[], Any],
) -> Any:
    """Record which parts of a condition are decisive, and return its value.

    Args:
        names: The mutation that drops each part.
        is_and: Whether they are joined by `and`.
        is_truth: Whether only the truth of the value matters.
        first: The first part.
        rest: The others, each to be called if those before do not decide.
    """
    values = [first]
    while len(values) <= len(rest) and bool(values[-1]) == is_and:
        values.append(rest[len(values) - 1]())
    value = values[-1]
    if any(name in undecided for name in names):
        for part in rest[len(values) - 1 :]:
            try:
                values.append(part())
            except Exception:  # which a part before guards: without it, the error would be raised
                values.append(_ERROR)
        for number, name in enumerate(names):
            other = _joined(values[:number] + values[number + 1 :], is_and)
            is_same = bool(other) == bool(value) if is_truth else _is_same(other, value)
            if other is _ERROR or not is_same:
                undecided.discard(name)  # type: ignore[arg-type]
    return value


_ERROR = object()


def _joined(values: list[Any], is_and: bool) -> Any:
    """Return the value of a condition; an error is neither true nor false."""
    for value in values:
        if value is _ERROR or bool(value) != is_and:
            return value
    return values[-1]


def _is_same(left: Any, right: Any) -> bool:
    try:
        return left is right or bool(left == right)
    except Exception:  # arrays have no single truth
        return False


if __name__ == "__main__":
    main()
else:
    sys.meta_path.insert(0, _Finder())
