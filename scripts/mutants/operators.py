"""The mutations of a module: small changes of its syntax tree, each of which a test should notice.

Left out is what no test is meant to notice: messages (`raise`, f-strings, logging), annotations,
decorators, `strict=`, and numbers at module level, which are limits of memory and cost.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OTHER_OPERATOR = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_OTHER_FUNCTION = {"any": "all", "all": "any", "min": "max", "max": "min"}
EQUIVALENTS = Path(__file__).with_name("equivalents.txt")
_LOGGERS = {"_log", "logging", "warnings"}


@dataclass(frozen=True)
class Mutation:
    """One change of a module.

    Attributes:
        path: The module, from the root of the checkout.
        scope: The class and function around it, joined by dots.
        lines: The first and last line of what changes; coverage knows their tests.
        span: Its first byte, and one past its last.
        before: Its text.
        after: The new text.
        number: Which of the same changes in the scope it is, from 1.
    """

    path: str
    scope: str
    lines: tuple[int, int]
    span: tuple[int, int]
    before: str
    after: str
    number: int = 1

    def __str__(self) -> str:
        """Return what names it in any version of the module; without line numbers."""
        nth = f" #{self.number}" if self.number > 1 else ""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path} {self.scope or '<module>'}: {before} -> {after}{nth}"

    def apply(self, source: bytes) -> bytes:
        """Return the mutated module."""
        start, stop = self.span
        return source[:start] + self.after.encode() + source[stop:]


def mutations(path: str, source: bytes) -> list[Mutation]:
    """Return all mutations of a module."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    all_mutations: list[Mutation] = []
    names: dict[str, int] = {}
    for scope, node, after in _visit(ast.parse(source), ""):
        span = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        lines = node.lineno, node.end_lineno
        mutation = Mutation(path, scope, lines, span, source[slice(*span)].decode(), after)
        number = names[str(mutation)] = names.get(str(mutation), 0) + 1
        all_mutations.append(Mutation(*(*vars(mutation).values(),)[:-1], number))
    return all_mutations


def equivalents() -> set[str]:
    """Return the names of the mutations in equivalents.txt, which change nothing observable."""
    lines = EQUIVALENTS.read_text().splitlines()
    return {line.rpartition(" | ")[0] for line in lines if not line.startswith("#")}


def _visit(node: Any, scope: str) -> Iterator[tuple[str, Any, str]]:
    """Yield each changed node with its scope, and the text that replaces it."""
    if isinstance(node, ast.Raise | ast.JoinedStr) or _is_logging(node):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for after in _changed(node, scope):
        yield scope, node, after if isinstance(after, str) else f"({ast.unparse(after)})"
    for condition in [node.test] if isinstance(node, ast.If | ast.IfExp) else []:
        yield from ((scope, condition, after) for after in ("True", "False"))
    for condition in node.ifs if isinstance(node, ast.comprehension) else []:
        yield scope, condition, "True"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    is_check = isinstance(node, ast.keyword) and node.arg == "strict"  # zip raises, or does not
    for name, value in [] if is_check else ast.iter_fields(node):
        if name not in {"decorator_list", "annotation", "returns", "type_params"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _visit(child, scope)


def _is_logging(node: Any) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[0] in _LOGGERS


def _is_number(node: Any) -> bool:
    """Whether an expression is a number, such as 64 << 10."""
    match node:
        case ast.BinOp(left, _, right):
            return _is_number(left) and _is_number(right)
        case ast.Constant(int() | float()):
            return True
    return False


def _changed(node: Any, scope: str) -> Iterator[Any]:
    """Yield what a node may become: an expression, or the text of statements."""
    match node:
        case ast.Compare(left, [op, *ops], comparators):
            yield ast.Compare(left, [_OTHER_OPERATOR[type(op)](), *ops], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(_OTHER_OPERATOR[type(op)](), values)
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in _OTHER_OPERATOR and (
            scope or not _is_number(node)
        ):
            yield ast.BinOp(left, _OTHER_OPERATOR[type(op)](), right)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)) if scope:
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), args, keywords) if name in _OTHER_FUNCTION and args:
            yield ast.Call(ast.Name(_OTHER_FUNCTION[name]), args, keywords)
        case ast.Expr(ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign():
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case ast.With(items, body) if "lock" in ast.unparse(items[0]).lower():
            unlocked = ast.unparse(ast.If(ast.Constant(value=True), body, []))
            yield unlocked.replace("\n", "\n" + " " * node.col_offset)
