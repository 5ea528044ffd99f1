"""Random filters over columns of all kinds: with indices and without they choose the same rows.

Conditions are drawn as text. Those that the table's columns do not allow are left out.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from lance_stream.errors import InvalidInputError
from lance_stream.read.scan import check_filter
from tests.eager_indices import eager_indices, no_indices
from tests.histories.life import Life
from tests.histories.model import KEY, STRINGS, State
from tests.histories.steps import Choices, check


def _one_of(*texts: str) -> Callable[[random.Random], str]:
    return lambda dice: dice.choice(texts)


def _string(dice: random.Random) -> str:
    return f"'{dice.choice([*STRINGS, 's3', 's14', 's2'])}'"


def _number(dice: random.Random) -> str:
    return dice.choice([str(dice.randint(-2, 110)), "2.5", "1e1"])


LITERALS: Mapping[str, Callable[[random.Random], str]] = {
    KEY: lambda dice: str(dice.randint(-2, 60)),
    "int32": _number,
    "int64": _number,
    "float32": _number,
    "float64": _number,
    "int8": _one_of("-128", "127", "0", "5", "1000", "2.5", "1e1"),
    "uint64": _one_of("0", "18446744073709551615", "9223372036854775808", "-1"),
    "real": _one_of("0", "-0.0", "1.5", "3", "1e300", "CAST('NaN' AS double)"),
    "string": _string,
    "large_string": _string,
    "binary": _one_of("X''", "X'00'", "X'ff'", "X'6162'"),
    "bool": _one_of("TRUE", "FALSE"),
    "date": _one_of("DATE '2024-01-03'", "'2024-01-05'", "DATE '1969-12-30'"),
    "timestamp": _one_of("TIMESTAMP '2024-01-02 00:00:00'", "'2024-01-04'"),
    "zoned": _one_of("TIMESTAMP '2024-01-02 00:00:00+00:00'"),
    "decimal": _one_of("1.25", "0", "-7", "99.99", "1.255"),
    "pair.x": lambda dice: str(dice.randint(0, 3)),
    "pair.y": _one_of("''", "'p'", "'q'"),
}
OTHER_MEANING = ("real", "float32")
"""In pylance a NaN with a sign is less than all numbers, and a float is compared with 0.1 as a
float."""


def operands(state: State) -> dict[str, str]:
    """Return what conditions are about, and its kind."""
    columns = {KEY: KEY}
    for column in state.columns:
        if column.kind == "pair":
            columns |= {f"{column.name}.{part}": f"pair.{part}" for part in "xy"}
        elif column.kind in LITERALS:
            columns[column.name] = column.kind
    return columns


def draw_part(dice: random.Random, columns: Mapping[str, str]) -> str:
    name = dice.choice([*columns])

    def value() -> str:
        return LITERALS[columns[name]](dice)

    match dice.randint(0, 11):
        case 0 | 1 | 2 | 3:
            return f"{name} {dice.choice(['<', '<=', '>', '>=', '=', '=', '!='])} {value()}"
        case 4 | 5:
            return f"{name} >= {value()} AND {name} < {value()}"
        case 6:
            return f"{name} BETWEEN {value()} AND {value()}"
        case 7:
            return f"{name} IN ({', '.join(value() for _ in range(dice.choice([1, 3, 20])))})"
        case 8:
            return f"{name} IS {dice.choice(['', 'NOT '])}NULL"
        case 9:
            return f"NOT ({name} {dice.choice(['<', '='])} {value()})"
        case 10:
            return f"{value()} {dice.choice(['<', '>='])} {name}"
    return dice.choice(
        [f"{name} LIKE 'a%'", name, f"NOT {name}", f"{KEY} % 2 = 0", f"{KEY} = {name}"]
    )


def draw_condition(dice: random.Random, columns: Mapping[str, str]) -> str:
    text = draw_part(dice, columns)
    for _ in range(dice.choice([0, 0, 1, 2])):
        text = f"({text}) {dice.choice(['AND', 'AND', 'OR'])} ({draw_part(dice, columns)})"
    return text


@check(weight=2)
def random_filters(life: Life, choose: Choices) -> None:
    """Filters choose the same rows in the same order: with eager indices, without, by pylance."""
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    columns = operands(line.states[version])
    conditions = choose(
        "conditions", lambda dice: [draw_condition(dice, columns) for _ in range(4)]
    )
    ours, theirs = line.ours(version), line.pylance(version)
    for condition in conditions:
        try:
            check_filter(ours.table, condition)
        except InvalidInputError:
            continue
        with no_indices():
            expected = keys_of(ours, condition)
        with eager_indices() as counts:
            assert keys_of(ours, condition) == expected, condition
            assert ours.count_rows(condition) == len(expected), condition
        life.counts["filters served by indices"] += counts["served"]
        if not any(kind in OTHER_MEANING and name in condition for name, kind in columns.items()):
            check_pylance(life, theirs, condition, expected)


def keys_of(ds: Any, condition: str) -> list[int]:
    keys: list[int] = ds.to_table([KEY], filter=condition)[KEY].to_pylist()
    return keys


def check_pylance(life: Life, theirs: Any, condition: str, expected: list[int]) -> None:
    try:
        scanner = theirs.scanner([KEY], filter=condition, use_scalar_index=False)
        keys = scanner.to_table()[KEY].to_pylist()
    except (OSError, ValueError):  # it does not know the condition
        return
    life.counts["filters compared with pylance"] += 1
    assert keys == expected, f"pylance: {condition}"
