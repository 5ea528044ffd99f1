"""Random SQL expressions, evaluated by Spark and by us: equal for each row, or refused by name.

    python -m tests.expressions.against_spark --count 20000 --seed 1

Each expression is evaluated over a small table of values of all types at which engines differ.
Spark runs with its default settings, in UTC. An expression that fails there for some row is
compared row by row: the same rows have to fail, except where a narrow integer of Spark overflows,
which is computed in 64 bits here.
"""

import argparse
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import evaluate, parse_value

INF, NAN = float("inf"), float("nan")


def nasty_rows() -> pa.Table:
    """Return the table: in each column the values at which engines differ, and nulls."""
    days = [
        date(1970, 1, 1),
        date(2024, 2, 29),
        date(1969, 12, 31),
        date(1, 1, 1),
        date(9999, 12, 31),
    ]
    times = [
        datetime(1970, 1, 1),
        datetime(2024, 2, 29, 12, 30, 15, 120000),
        datetime(1969, 12, 31, 23, 59, 59, 999999),
        datetime(2024, 12, 30),
        datetime(1900, 1, 1, 0, 0, 0, 1),
    ]
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "b": (pa.bool_(), [True, False]),
        "i8": (pa.int8(), [0, 1, -1, 127, -128, 7]),
        "i16": (pa.int16(), [0, 2, -2, 32767, -32768, 10]),
        "i32": (pa.int32(), [0, 3, -3, 2**31 - 1, -(2**31), 16777217, 100]),
        "i64": (pa.int64(), [0, 5, -5, 2**63 - 1, -(2**63), 2**53 + 1, 9007199254740992]),
        "f32": (
            pa.float32(),
            [0.0, -0.0, 1.5, 0.1, NAN, INF, -INF, 16777216.0, 1e-3, 3.4e38, 1e20],
        ),
        "f64": (
            pa.float64(),
            [0.0, -0.0, 2.5, 0.1, NAN, INF, -INF, 9007199254740992.0, 1e20, 1e7, 0.001, 1e-5, -3.5],
        ),
        "d2": (
            pa.decimal128(10, 2),
            [Decimal(x) for x in ("0.00", "1.10", "-2.55", "99999999.99")],
        ),
        "d18": (
            pa.decimal128(38, 18),
            [
                Decimal(x).quantize(Decimal(10) ** -18)
                for x in ("0", "0.1", "-7.000000000000000005")
            ],
        ),
        "d0": (pa.decimal128(20, 0), [Decimal(x) for x in (0, 2**64 - 1, -12, 10**19)]),
        "d37": (
            pa.decimal128(38, 37),
            [
                Decimal(x).quantize(Decimal(10) ** -37, context=Context(prec=38))
                for x in ("7.0000000000000000000000000000000001", "-0.99999999999999999999", "0.1")
            ],
        ),
        "s": (
            pa.string(),
            [
                *("", "a", "A", "ab", " a ", "a%b", "a_b", "CORP\\bob", "it's", 'say "x"', "é"),
                *("Straße", "a\tb", "a\nb", "12", " 7 ", "-3.5", "true", "2024-02-29", "NaN"),
                "İstanbul",
            ],
        ),
        "js": (
            pa.string(),
            [
                *('{"a": {"b c": [1, null, "x"]}}', '{"a":null, "a": [2.50]}', "[[1e2], {}]"),
                *("{'a': 'it\\'s'}", '{"a":"\\ud83d\\ude00\\n\\/"}', '{"a": 1} x', "7x", '{"a":1'),
                *('"a"', "null", "", ' {"a" : true}', '["\U0001f600\\u001f"]', '{"a.b": -0}'),
            ],
        ),
        "t": (pa.string(), ["a", "b", "", "10%", "\\", "ΑΣ", "z", "0", "no", "1e3"]),
        "x": (pa.binary(), [b"", b"a", b"\x00\xff", b"abc"]),
        "dt": (pa.date32(), days),
        "ts": (pa.timestamp("us", "UTC"), [time.replace(tzinfo=UTC) for time in times]),
        "tn": (pa.timestamp("us"), times),
        "l": (pa.list_(pa.int32()), [[], [1], [1, None, 3], [2, 2, 2, 2]]),
        "ls": (pa.list_(pa.string()), [["a", "b"], [], [None], ["é", "a"]]),
        "m": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], [("b", 2), ("a", None)]]),
        "st": (
            pa.struct([("p", pa.int32()), ("q", pa.string())]),
            [{"p": 1, "q": "a"}, {"p": None, "q": ""}],
        ),
    }
    num_rows = 26
    columns = {"rid": pa.array(range(num_rows), pa.int32())}
    for position, (name, (arrow, some)) in enumerate(values.items()):
        with_null = [*some, None]
        step = 1 if position % 2 else len(with_null) + 1
        rows = [with_null[(row * step + position * 3) % len(with_null)] for row in range(num_rows)]
        columns[name] = pa.array(rows, arrow)
    return pa.table(columns)


NUMBERS: Final = {
    "int": ["i8", "i16", "i32", "i64", "st.p", "m['a']"],
    "float": ["f32", "f64"],
    "decimal": ["d2", "d18", "d0", "d37"],
}


LIKE_PATTERNS: Final = [
    *("'a%'", "'%b'", "'_'", "'a_b'", "''", "'%'", "'a\\_b'", "'10\\%'", "'%\\\\\\\\%'", '"A%"'),
    *("'é'", "'a!%b' ESCAPE '!'", "'__'", "'%\\\\\\\\bob'", "'str%'", "'\\\\'", "'a\\%%'"),
]
REGULAR_EXPRESSIONS: Final = [
    *("'^a'", "'b$'", "'a.b'", "'[a-c]+'", "'\\\\d+'", "'^$'", "'\\\\s'", "'^(a|b)*$'", "'.'"),
    *("r'\\w'", "'^[^a]{1,3}$'", "'é|ß'", "'(?i)A'", "'\\\\ba'"),
]


@dataclass
class Expressions:
    """Writes random expressions.

    Attributes:
        dice: The source of chance.
        max_depth: How deeply calls are nested.
    """

    dice: random.Random
    max_depth: int = 3

    def any(self) -> str:
        """Return an expression of any type."""
        kind = self.dice.choice(
            ["truth"] * 8 + ["text"] * 5 + ["number"] * 6 + ["date", "time", "time", "list"]
        )
        expression: str = getattr(self, kind)(0)
        return expression

    def _pick(
        self, depth: int, leaves: Sequence[str], calls: Sequence[Callable[[int], str]]
    ) -> str:
        if depth >= self.max_depth or self.dice.random() < 0.15 + 0.2 * depth:
            return self.dice.choice(leaves)
        return self.dice.choice(calls)(depth + 1)

    # --- numbers

    def number(self, depth: int) -> str:
        kind = self.dice.choice(["int", "int", "float", "decimal"])
        return self.number_of(kind, depth)

    def number_of(self, kind: str, depth: int) -> str:
        literals = {
            "int": ["0", "1", "-1", "2", "7", "100", "3L", "2147483648", "9007199254740993"],
            "float": ["0.5D", "1e0", "-1e300", "1e-5", "2.5F", "1e20"],
            "decimal": [
                "0.1",
                "1.5",
                "-2.75",
                "100.00",
                "0.000000000000000001",
                "1BD",
                "7." + "0" * 30 + "1",
            ],
        }[kind]
        leaves = [*NUMBERS[kind], *NUMBERS[kind], self.dice.choice(literals)]
        return self._pick(
            depth,
            leaves,
            [
                lambda d: self._arithmetic(kind, d),
                lambda d: self._arithmetic(kind, d),
                lambda d: f"-{self._in_parens(self.number_of(kind, d))}",
                lambda d: f"abs({self.number_of(kind, d)})",
                lambda d: f"round({self.number_of(kind, d)}{self._digits()})",
                lambda d: f"coalesce({self.number(d)}, {self.number_of(kind, d)})",
                lambda d: f"nullif({self.number_of(kind, d)}, {self.number(d)})",
                lambda d: self._cast_to_number(kind, d),
                lambda d: f"length({self.text(d)})" if kind == "int" else self.number_of(kind, d),
                lambda d: f"size({self.list(d)})" if kind == "int" else self.number_of(kind, d),
            ],
        )

    def _digits(self) -> str:
        return self.dice.choice(["", ", 0", ", 1", ", 2", ", -1", ", 5"])

    def _in_parens(self, text: str) -> str:
        return f"({text})"

    def _operand(self, kind: str, depth: int) -> str:
        operand = self.number_of(kind, depth) if self.dice.random() < 0.6 else self.number(depth)
        return self._in_parens(operand) if " " in operand and self.dice.random() < 0.7 else operand

    def _arithmetic(self, kind: str, depth: int) -> str:
        operator = self.dice.choice(["+", "-", "*", "*", "/", "%"])
        if operator in "/%":
            right = self._operand(kind, depth)
            if self.dice.random() < 0.6:
                right = f"nullif({right}, 0)"
            return f"{self._operand(kind, depth)} {operator} {right}"
        return f"{self._operand(kind, depth)} {operator} {self._operand(kind, depth)}"

    def _cast_to_number(self, kind: str, depth: int) -> str:
        target = self.dice.choice(
            {
                "int": ["tinyint", "smallint", "int", "bigint"],
                "float": ["float", "double"],
                "decimal": ["decimal(10,2)", "decimal(38,10)", "decimal(20,0)", "decimal"],
            }[kind]
        )
        source = self.dice.choice(
            [self.number, self.number, self.number, self.truth, lambda _: self.dice.choice("st")]
        )(depth)
        if self.dice.random() < 0.4:
            return f"try_cast({source} AS {target})"
        return f"CAST({source} AS {target})"

    # --- texts

    def string(self) -> str:
        """Return a literal."""
        plain = self.dice.choice(
            [
                "",
                "a",
                "A",
                "ab",
                "%",
                "a%b",
                "CORP\\bob",
                "it's",
                "é",
                "10%",
                "a\tb",
                "z",
                '"',
                "\\",
            ]
        )
        quote = self.dice.choice("''''\"")
        escaped = plain.replace("\\", "\\\\").replace(
            quote, self.dice.choice(["\\" + quote, quote * 2])
        )
        if self.dice.random() < 0.1 and "\\" not in plain and quote not in plain:
            return f"r{quote}{plain}{quote}"
        return quote + escaped.replace("\t", self.dice.choice(["\t", "\\t", "\\u0009"])) + quote

    def text(self, depth: int) -> str:
        return self._pick(
            depth,
            ["s", "s", "t", "js", "st.q", "ls[0]", self.string()],
            [
                lambda d: f"get_json_object({self.text(d)}, {self._json_path()})",
                lambda _: f"get_json_object(js, {self._json_path()})",
                lambda d: f"lower({self.text(d)})",
                lambda d: f"upper({self.text(d)})",
                lambda d: (
                    f"{self.dice.choice(['trim', 'ltrim', 'rtrim', 'btrim'])}({self.text(d)})"
                ),
                lambda d: f"TRIM({self._side()} {self.string()} FROM {self.text(d)})",
                lambda d: f"substring({self.text(d)}, {self._position()}{self._length()})",
                lambda d: f"substring({self.text(d)} FROM {self._position()})",
                lambda d: f"left({self.text(d)}, {self._position()})",
                lambda d: f"concat({self.text(d)}, {self._part(d)})",
                lambda d: f"{self._text_operand(d)} || {self._text_operand(d)}",
                lambda d: f"coalesce({self.text(d)}, {self.text(d)})",
                lambda d: f"nullif({self.text(d)}, {self.text(d)})",
                lambda d: f"CAST({self._castable(d)} AS string)",
                lambda d: f"CAST({self._castable(d)} AS string)",
                lambda _: f"get(ls, {self._position()})",
            ],
        )

    def _json_path(self) -> str:
        steps = [".a", ".b", "[0]", "[1]", "['b c']", "['a.b']", ".a", "[2]", ".*"]
        return '"$' + "".join(self.dice.choices(steps, k=self.dice.randrange(4))) + '"'

    def _side(self) -> str:
        return self.dice.choice(["BOTH", "LEADING", "TRAILING"])

    def _text_operand(self, depth: int) -> str:
        operand = self._part(depth)
        return self._in_parens(operand) if " " in operand else operand

    def _part(self, depth: int) -> str:
        return self.dice.choice([self.text, self.text, self.text, self._castable])(depth)

    def _castable(self, depth: int) -> str:
        return self.dice.choice(
            [self.number, self.number, self.truth, self.date, self.time, self.text]
        )(depth)

    def _position(self) -> str:
        return self.dice.choice(["0", "1", "2", "-1", "-2", "5", "-9"])

    def _length(self) -> str:
        return self.dice.choice(["", ", 0", ", 1", ", 2", ", 10", ", -1"])

    # --- times

    def date(self, depth: int) -> str:
        return self._pick(
            depth,
            ["dt", "dt", "DATE '2024-02-29'", "DATE'1969-12-31'"],
            [
                lambda d: f"CAST({self.time(d)} AS date)",
                lambda d: f"trunc({self.date(d)}, '{self.dice.choice(['year', 'MM', 'week'])}')",
                lambda d: f"coalesce({self.date(d)}, {self.date(d)})",
                lambda _: f"try_cast({self.dice.choice('st')} AS date)",
            ],
        )

    def time(self, depth: int) -> str:
        units = [
            "YEAR",
            "quarter",
            "month",
            "WEEK",
            "day",
            "hour",
            "minute",
            "second",
            "millisecond",
        ]
        return self._pick(
            depth,
            ["ts", "ts", "tn", "TIMESTAMP '2024-02-29 12:30:15.12'"],
            [
                lambda d: f"date_trunc('{self.dice.choice(units)}', {self.time(d)})",
                lambda d: f"CAST({self.date(d)} AS timestamp)",
                lambda d: (
                    f"CAST({self.time(d)} AS {self.dice.choice(['timestamp', 'timestamp_ntz'])})"
                ),
            ],
        )

    def list(self, depth: int) -> str:
        return self._pick(
            depth,
            ["l", "l"],
            [
                lambda d: f"array({self.number_of('int', d)}, {self.number_of('int', d)})",
                lambda d: f"array({self.number_of('float', d)}, {self.number_of('float', d)})",
                lambda _: "l",
            ],
        )

    # --- truth

    def truth(self, depth: int) -> str:
        return self._pick(
            depth,
            ["b", "b", "TRUE", "FALSE"],
            [
                self._comparison,
                self._comparison,
                self._comparison,
                self._comparison,
                lambda d: f"{self._truth_operand(d)} {self._connective()} {self._truth_operand(d)}",
                lambda d: f"{self._truth_operand(d)} {self._connective()} {self._truth_operand(d)}",
                lambda d: f"NOT {self._truth_operand(d)}",
                lambda d: f"{self._value(d)} IS {self._no()}NULL",
                lambda d: (
                    f"{self._truth_operand(d)} IS {self._no()}{self.dice.choice(['TRUE', 'FALSE'])}"
                ),
                self._in,
                self._in,
                self._between,
                self._like,
                self._like,
                lambda d: f"{self._match()}({self.text(d)}, {self.string()})",
                lambda d: f"{self._text_operand(d)} {self._no()}RLIKE {self._pattern()}",
                lambda d: f"array_contains({self.list(d)}, {self.number_of('int', d)})",
                lambda _: f"array_contains(ls, {self.string()})",
                lambda d: f"isnan({self.number_of('float', d)})",
                lambda d: f"CAST({self.number(d)} AS boolean)",
                lambda _: "try_cast(t AS boolean)",
            ],
        )

    def _connective(self) -> str:
        return self.dice.choice(["AND", "OR"])

    def _no(self) -> str:
        return self.dice.choice(["", "NOT "])

    def _truth_operand(self, depth: int) -> str:
        operand = self.truth(depth)
        return self._in_parens(operand) if self.dice.random() < 0.6 else operand

    def _value(self, depth: int) -> str:
        operand = self._castable(depth)
        return self._in_parens(operand) if " " in operand and self.dice.random() < 0.8 else operand

    def _two(self, depth: int) -> Iterator[str]:
        """Yield values that can be compared."""
        kind = self.dice.choice(
            ["number"] * 5 + ["text"] * 3 + ["date", "time", "bytes", "truth", "mixed"]
        )
        while True:
            if kind == "bytes":
                yield self.dice.choice(["x", "X'61'", "X''"])
            elif kind == "mixed":
                yield self.dice.choice([self.date, self.time])(depth)
            else:
                operand = getattr(self, kind)(depth)
                yield self._in_parens(operand) if " " in operand else operand

    def _comparison(self, depth: int) -> str:
        if self.dice.random() < 0.1:
            column, literal = self.dice.choice(
                [("dt", "'2024-02-29'"), ("ts", "'2024-02-29 12:30:15.12'"), ("tn", "'1970-01-01'")]
            )
            return f"{column} {self._operator()} {literal}"
        two = self._two(depth)
        return f"{next(two)} {self._operator()} {next(two)}"

    def _operator(self) -> str:
        return self.dice.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])

    def _in(self, depth: int) -> str:
        two = self._two(depth)
        value = next(two)
        members = ", ".join(next(two) for _ in range(self.dice.randint(1, 4)))
        return f"{value} {self._no()}IN ({members})"

    def _between(self, depth: int) -> str:
        two = self._two(depth)
        return f"{next(two)} {self._no()}BETWEEN {next(two)} AND {next(two)}"

    def _like(self, depth: int) -> str:
        pattern = self.dice.choice(LIKE_PATTERNS)
        operator = self.dice.choice(["LIKE", "ILIKE"])
        return f"{self._text_operand(depth)} {self._no()}{operator} {pattern}"

    def _match(self) -> str:
        return self.dice.choice(["contains", "startswith", "endswith"])

    def _pattern(self) -> str:
        return self.dice.choice(REGULAR_EXPRESSIONS)


@dataclass
class Findings:
    """What came out.

    Attributes:
        counts: How many expressions were equal, refused, and so on.
        refused: Why we refused, by the kind of refusal.
        differences: Expressions with other values, and both of them.
    """

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def differ(self, text: str, why: str) -> None:
        self.counts["different"] += 1
        self.differences.append(f"{text}\n    {why}")
        print(self.differences[-1], flush=True)


FAILED: Final = "fails"


def plain_rows(array: Any) -> list[Any]:
    """Return values of either engine as ones that compare, with the sign of zero, and NaN."""
    return [_plain(value) for value in array.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, Decimal):
        return ("number", value) if value != value.to_integral_value() else ("number", int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return ("number", value)
    return value


def are_digits_of_one_number(ours: Any, theirs: Any) -> bool:
    """Return whether two texts are one double: Java before 19 does not always write the shortest.

    It writes 1.84467440737095526E18 for 1.8446744073709553E18 (JDK-4511638).
    """
    if not (isinstance(ours, str) and isinstance(theirs, str) and len(theirs) > len(ours)):
        return False
    try:
        return float(ours) == float(theirs)
    except ValueError:
        return False


class Judge:
    """Evaluates expressions by both engines and compares them.

    Args:
        spark: A session in UTC.
        dice: Decides which rows are looked at one by one.
    """

    def __init__(self, spark: SparkSession, dice: random.Random) -> None:
        self.table = nasty_rows()
        self.batch = self.table.to_batches()[0]
        self.frame: DataFrame = spark.createDataFrame(self.table)
        self.rows = [self.frame.filter(f"rid = {row}") for row in range(self.table.num_rows)]
        self.dice = dice
        self.findings = Findings()

    def judge(self, texts: Sequence[str]) -> None:
        """Compare the values of some expressions, all in one query of Spark if none fails."""
        ours = [(text, result) for text in texts if (result := self._ours(text)) is not None]
        self._compare([row for row in ours if row[1] != FAILED])
        for text, values in ours:
            if values == FAILED:
                self._compare_rows(text)

    def _ours(self, text: str) -> Any:
        """Return our values: None if it is refused, FAILED if a row fails."""
        try:
            expression = parse_value(text, self.batch.schema)
        except (InvalidInputError, NotFoundError) as error:
            self.findings.counts["refused"] += 1
            self.findings.refused[str(error).rpartition("' ")[2][:70]] += 1
            return None
        try:
            return plain_rows(evaluate(expression, self.batch))
        except InvalidInputError:
            return FAILED

    def _compare(self, ours: Sequence[tuple[str, Any]]) -> None:
        if not ours:
            return
        try:
            theirs = self.frame.selectExpr(
                *(f"{text} AS c{index}" for index, (text, _) in enumerate(ours))
            ).toArrow()
        except PySparkException as error:
            if len(ours) > 1:
                middle = len(ours) // 2
                self._compare(ours[:middle])
                self._compare(ours[middle:])
            elif type(error).__name__ in ("AnalysisException", "ParseException"):
                self.findings.differ(ours[0][0], f"Spark refuses it: {str(error)[:300]}")
            else:
                self._compare_rows(ours[0][0])
            return
        for (text, values), column in zip(ours, theirs.columns, strict=True):
            expected = plain_rows(column)
            if values != expected:
                rows = [
                    row
                    for row, two in enumerate(zip(values, expected, strict=True))
                    if two[0] != two[1] and not are_digits_of_one_number(*two)
                ]
                if not rows:
                    self.findings.counts["equal, but for digits that Java 17 adds"] += 1
                    continue
                row = rows[0]
                self.findings.differ(
                    text, f"rows {rows}: we have {values[row]!r}, Spark {expected[row]!r}"
                )
            else:
                self.findings.counts["equal"] += 1

    def _compare_rows(self, text: str) -> None:
        """Compare an expression that fails for some row, row by row."""
        expression = parse_value(text, self.batch.schema)
        for row in self.dice.sample(range(self.table.num_rows), 2):
            try:
                ours = plain_rows(evaluate(expression, self.batch.slice(row, 1)))[0]
            except InvalidInputError as failure:
                ours = FAILED, str(failure)[-120:]
            try:
                other = plain_rows(self.rows[row].selectExpr(f"{text} AS c").toArrow().column(0))[0]
            except PySparkException as failure:
                other = FAILED, failure.getCondition()
            ours_failed, other_failed = (
                isinstance(row, tuple) and row[0] == FAILED for row in (ours, other)
            )
            if ours_failed and other_failed:
                continue
            if other_failed and other[1] in _NARROW:
                self.findings.counts["rows that overflow a narrow integer of Spark"] += 1
                continue
            if other_failed and not ours_failed and "nullif(" in text:
                self.findings.counts["rows where Spark computes nullif in vain, and fails"] += 1
                continue
            if ours != other and not are_digits_of_one_number(ours, other):
                self.findings.differ(text, f"row {row}: we have {ours!r}, Spark {other!r}")
                return
        self.findings.counts["equal, with rows that fail"] += 1


_NARROW: Final = frozenset(
    {"ARITHMETIC_OVERFLOW", "ARITHMETIC_OVERFLOW.WITH_SUGGESTION", "BINARY_ARITHMETIC_OVERFLOW"}
    | {"ARITHMETIC_OVERFLOW.WITHOUT_SUGGESTION"}
)


def run(spark: SparkSession, seed: int, count: int, at_once: int = 100) -> Findings:
    """Compare random expressions.

    Args:
        spark: A session in UTC.
        seed: Of the expressions.
        count: How many.
        at_once: How many are columns of one query.
    """
    dice = random.Random(seed)
    expressions, judge = Expressions(dice), Judge(spark, dice)
    position = 0
    while position < count:
        texts = [expressions.any() for _ in range(min(at_once, count - position))]
        judge.judge(texts)
        position += len(texts)
        print(f"{position} of {count}", file=sys.stderr, flush=True)
    return judge.findings


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("SQLQueryContextLogger").disabled = True
    findings = run(spark, options.seed, options.count)
    print(dict(findings.counts))
    for why, count in findings.refused.most_common(25):
        print(f"    {count:6} refused: {why}")
    sys.exit(bool(findings.differences))


if __name__ == "__main__":
    main()
