"""Parses SQL expressions by Spark's grammar.

Operators, from the weakest to the strongest:

    OR
    AND
    NOT a   ! a
    a BETWEEN b AND c   a IN (...)   a LIKE b   a RLIKE b   a IS NULL   a IS DISTINCT FROM b
    = == <=> <> != < <= > >=          from left to right: a = b < c is (a = b) < c
    + - ||
    * / % DIV
    -a  +a
    a::type   a[b]   a.b              -1::type is (-1)::type

The precedence of operators, the names of types and the escapes of strings (`tokens`) are our own
tables, not those of a parser library: if a new release parsed a text differently, other rows would
be deleted.

Source:  `booleanExpression`, `valueExpression` and `primaryExpression` in Spark's SqlBaseParser.g4.
Differs: Queries, CASE, intervals, lambdas and bitwise operators are missing: they have no rule.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.expressions import nodes
from lance_stream.expressions.nodes import Node, NodeT
from lance_stream.expressions.tokens import Kind, Token, split_tokens

MAX_CHARACTERS: Final = 1 << 20

Names = tuple[str, ...]


class NamedColumn(NamedTuple):
    """A column as an expression names it.

    Attributes:
        path: The names from the top-level column down.
        start: The position of its first character.
        stop: One past its last.
    """

    path: Names
    start: int
    stop: int


class Tree(NamedTuple):
    """A parsed expression.

    Attributes:
        node: Its root.
        columns: The columns that it names, in the order of the text.
        clocks: The calls that return the current date or time: function, start and stop.
    """

    node: Node
    columns: tuple[NamedColumn, ...]
    clocks: tuple[tuple[str, int, int], ...]


def parse_tree(text: str) -> Tree:
    """Return the tree of a SQL expression.

    Raises:
        InvalidInputError: The text is not one expression, or uses unsupported syntax.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidInputError(
            f"the SQL expression has {len(text)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    try:
        return _Parser(text).parse()
    except RecursionError:
        raise InvalidInputError(f"the SQL expression is nested too deeply: {text[:80]!r}") from None


TYPES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
"""The types that a cast can name, in addition to decimals. Spark lacks some of them: unsigned
integers, TEXT and TIMESTAMPTZ."""

_DECIMALS: Final = frozenset({"DECIMAL", "DEC", "NUMERIC"})

_COMPARISONS: Final[Mapping[str, type[nodes.Binary]]] = {
    "=": nodes.Equal,
    "==": nodes.Equal,
    "<=>": nodes.NullSafeEqual,
    "<>": nodes.NotEqual,
    "!=": nodes.NotEqual,
    "<": nodes.Less,
    "<=": nodes.LessOrEqual,
    ">": nodes.Greater,
    ">=": nodes.GreaterOrEqual,
}
_SUMS: Final[Mapping[str, type[nodes.Binary]]] = {
    "+": nodes.Add,
    "-": nodes.Subtract,
    "||": nodes.Concatenate,
}
_PRODUCTS: Final[Mapping[str, type[nodes.Binary]]] = {
    "*": nodes.Multiply,
    "/": nodes.Divide,
    "%": nodes.Remainder,
    "DIV": nodes.WholeDivide,
}

_PATTERNS: Final[Mapping[str, type[nodes.Pattern]]] = {"LIKE": nodes.Like, "ILIKE": nodes.ILike}

_CLOCKS: Final = frozenset({"current_date", "current_timestamp", "now", "localtimestamp"})

_RESERVED: Final = frozenset(
    [
        *("AND", "OR", "NOT", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "ESCAPE"),
        *("SYMMETRIC", "ASYMMETRIC", "DIV", "CASE", "WHEN", "THEN", "ELSE", "END", "SELECT"),
        *("EXISTS", "FROM", "WHERE", "UNION", "INTERVAL", "DISTINCT"),
    ]
)
"""Words that name columns only in backticks."""

_LITERALS_OF_TYPE: Final = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMPTZ")

_SUFFIXES: Final[Mapping[str, str]] = {
    "L": "BIGINT",
    "S": "SMALLINT",
    "Y": "TINYINT",
    "D": "DOUBLE",
    "F": "FLOAT",
}


class _Parser:
    """Reads the tokens of one expression, one after another."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = split_tokens(text)
        self._next = 0
        self._columns: list[NamedColumn] = []
        self._clocks: list[tuple[str, int, int]] = []

    def parse(self) -> Tree:
        node = self._any()
        if self._token.kind is not Kind.END:
            raise self._unexpected()
        return Tree(node, tuple(self._columns), tuple(self._clocks))

    # --- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _advance(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _is_word(self, *words: str) -> bool:
        """Return whether the next tokens are these keywords or symbols."""
        for position, word in enumerate(words, self._next):
            token = self._tokens[position]  # exists, since the last token is not a word
            if token.kind not in (Kind.NAME, Kind.SYMBOL) or token.text.upper() != word:
                return False
        return True

    def _accept(self, *words: str) -> bool:
        is_word = self._is_word(*words)
        if is_word:
            self._next += len(words)
        return is_word

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._unexpected(word)

    def _unexpected(self, missing: str | None = None) -> InvalidInputError:
        token = self._token
        before = self._tokens[max(self._next - 1, 0)]
        context = self._text[before.start : before.stop]
        if missing is not None:
            problem = f"{missing!r} is missing after {context!r}, at character {before.stop}"
        elif token.kind is Kind.END and self._next:
            problem = f"the expression is incomplete after {context!r}, at character {before.stop}"
        else:
            word = self._text[token.start : token.stop]
            problem = f"unexpected {word!r} at character {token.start + 1}"
        return InvalidInputError(f"{self._text!r:.2000} is not a SQL expression: {problem}")

    def _unsupported(self, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"{what} is not supported, at character {self._token.start + 1} of "
            f"{self._text!r:.2000}. docs/reference/expressions.md lists the supported syntax"
        )

    def _node(self, start: int, node: NodeT) -> NodeT:
        node.source = self._text, start, self._tokens[self._next - 1].stop
        return node

    # --- operators, from the weakest

    def _any(self) -> Node:
        start, node = self._token.start, self._conjunction()
        while self._accept("OR"):
            node = self._node(start, nodes.Or(node, self._conjunction()))
        return node

    def _conjunction(self) -> Node:
        start, node = self._token.start, self._negation()
        while self._accept("AND"):
            node = self._node(start, nodes.And(node, self._negation()))
        return node

    def _negation(self) -> Node:
        start = self._token.start
        if self._accept("NOT") or self._accept("!"):
            return self._node(start, nodes.Not(self._negation()))
        return self._predicate()

    def _predicate(self) -> Node:
        start, value = self._token.start, self._value()
        if self._accept("IS"):
            is_not = self._accept("NOT")
            node = self._is(start, value)
        else:
            is_not = self._accept("NOT")
            ranged = self._range(start, value)
            if ranged is None:
                if is_not:
                    raise self._unexpected()
                return value
            node = ranged
        return self._node(start, nodes.Not(node)) if is_not else node

    def _is(self, start: int, value: Node) -> Node:
        if self._accept("DISTINCT", "FROM"):
            other = self._value()
            return self._node(
                start, nodes.Not(self._node(start, nodes.NullSafeEqual(value, other)))
            )
        for word, constant in (
            ("NULL", nodes.Null()),
            ("UNKNOWN", nodes.Null()),
            ("TRUE", nodes.Boolean(True)),
            ("FALSE", nodes.Boolean(False)),
        ):
            if self._accept(word):
                return self._node(start, nodes.Is(value, constant))
        raise self._unexpected()

    def _range(self, start: int, value: Node) -> Node | None:
        if self._accept("BETWEEN"):
            if self._is_word("SYMMETRIC") or self._is_word("ASYMMETRIC"):
                raise self._unsupported(f"BETWEEN {self._token.text}")
            low = self._value()
            self._expect("AND")
            return self._node(start, nodes.Between(value, low, self._value()))
        if self._accept("IN"):
            self._expect("(")
            if self._is_word("SELECT"):
                raise self._unsupported("a query")
            return self._node(start, nodes.In(value, self._list(")")))
        for word, kind in _PATTERNS.items():
            if self._accept(word):
                if self._is_word("ANY") or self._is_word("ALL") or self._is_word("SOME"):
                    raise self._unsupported(f"{word} {self._token.text}")
                node = self._node(start, kind(value, self._value()))
                if not self._accept("ESCAPE"):
                    return node
                return self._node(start, nodes.Escape(node, self._string().text))
        if self._accept("RLIKE") or self._accept("REGEXP"):
            return self._call(start, "rlike", [value, self._value()])
        return None

    def _string(self) -> nodes.Literal:
        if self._token.kind is not Kind.STRING:
            raise self._unexpected()
        token = self._advance()
        return self._node(token.start, nodes.Literal(token.text, is_string=True))

    def _value(self) -> Node:
        return self._chain(_COMPARISONS, lambda: self._chain(_SUMS, self._product))

    def _product(self) -> Node:
        return self._chain(_PRODUCTS, self._signed)

    def _chain(
        self, operators: Mapping[str, type[nodes.Binary]], operand: Callable[[], Node]
    ) -> Node:
        start, node = self._token.start, operand()
        while self._token.kind in (Kind.SYMBOL, Kind.NAME):
            operator = operators.get(self._token.text.upper())
            if operator is None:
                break
            self._advance()
            node = self._node(start, operator(node, operand()))
        return node

    def _signed(self) -> Node:
        start = self._token.start
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        if self._is_word("-") and following.kind is not Kind.NUMBER:
            self._advance()
            return self._node(start, nodes.Negative(self._signed()))
        if self._accept("+"):
            return self._call(start, "positive", [self._signed()])
        return self._primary()

    # --- operands

    def _primary(self) -> Node:
        start = self._token.start
        node = self._operand()
        while True:
            if self._accept("::"):
                node = self._node(start, nodes.Cast(node, self._type()))
            elif self._accept("["):
                key = self._value()
                self._expect("]")
                node = self._node(start, nodes.Subscript(node, key))
            elif self._accept("."):
                node = self._node(start, nodes.FieldAccess(node, self._identifier()))
            else:
                return node

    def _operand(self) -> Node:
        token = self._token
        start = token.start
        if token.kind is Kind.STRING:
            return self._string()
        if token.kind is Kind.BYTES:
            self._advance()
            return self._node(start, nodes.Bytes(token.text))
        if token.kind is Kind.NUMBER:
            self._advance()
            return self._number(token)
        if self._accept("-"):  # the sign of a number binds more strongly than ::
            return self._node(start, nodes.Negative(self._number(self._advance())))
        if token.kind is Kind.QUOTED_NAME:
            return self._column()
        if token.kind is Kind.NAME:
            return self._word()
        if self._accept("("):
            if self._is_word("SELECT"):
                raise self._unsupported("a query")
            node = self._any()
            if self._is_word(","):
                raise self._unsupported("a list in parentheses")
            self._expect(")")
            return self._node(start, nodes.Parentheses(node))
        raise self._unexpected()

    def _word(self) -> Node:
        token = self._token
        start, word = token.start, token.text.upper()
        if word in ("TRUE", "FALSE"):
            self._advance()
            return self._node(start, nodes.Boolean(word == "TRUE"))
        if word == "NULL":
            self._advance()
            return self._node(start, nodes.Null())
        following = self._tokens[self._next + 1]
        if word in _LITERALS_OF_TYPE and following.kind is Kind.STRING:
            self._advance()
            return self._node(start, nodes.Cast(self._string(), TYPES[word], is_literal=True))
        if word in ("CASE", "INTERVAL", "EXISTS", "SELECT"):
            raise self._unsupported(word)
        if word in _RESERVED:
            raise self._unexpected()
        if following.text == "(" and following.kind is Kind.SYMBOL:
            self._next += 2
            return self._function(start, token.text.lower())
        if token.text.lower() in _CLOCKS - {"now"}:
            self._advance()
            return self._clock(start, token.text.lower())
        return self._column()

    def _number(self, token: Token) -> Node:
        digits = token.text.rstrip("LlSsYyDdFfBb")
        suffix = token.text[len(digits) :].upper()
        literal = nodes.Literal(digits, is_string=False, is_decimal=suffix == "BD")
        node = self._node(token.start, literal)
        if suffix in ("", "BD"):
            return node
        if suffix in "LSY" and not digits.isdigit():
            raise self._unsupported(f"the number {token.text}")
        return self._node(token.start, nodes.Cast(node, TYPES[_SUFFIXES[suffix]], is_literal=True))

    def _column(self) -> Node:
        start = self._token.start
        path = [self._identifier()]
        node: Node = self._node(start, nodes.Column(path[0]))
        while self._accept("."):
            path.append(self._identifier())
            node = self._node(start, nodes.FieldAccess(node, path[-1]))
        stop = self._tokens[self._next - 1].stop
        self._columns.append(NamedColumn(tuple(path), start, stop))
        return node

    def _identifier(self) -> str:
        token = self._token
        if token.kind not in (Kind.NAME, Kind.QUOTED_NAME):
            raise self._unexpected()
        self._advance()
        return token.text

    def _list(self, closing: str) -> list[Node]:
        items: list[Node] = []
        if self._accept(closing):
            return items
        while True:
            items.append(self._any())
            if not self._accept(","):
                break
        self._expect(closing)
        return items

    # --- functions

    def _call(self, start: int, name: str, arguments: list[Node]) -> nodes.Call:
        return self._node(start, nodes.Call(name, arguments))

    def _function(self, start: int, name: str) -> Node:
        special = {
            "cast": self._cast,
            "try_cast": self._cast,
            "trim": self._trim,
            "substring": self._substring,
            "substr": self._substring,
        }.get(name)
        if special is not None:
            return special(start, name)
        if self._is_word("DISTINCT"):
            raise self._unsupported("DISTINCT")
        arguments = self._list(")")
        if name in _CLOCKS and not arguments:
            return self._clock(start, name)
        return self._call(start, name, arguments)

    def _clock(self, start: int, name: str) -> Node:
        self._clocks.append((name, start, self._tokens[self._next - 1].stop))
        return self._call(start, name, [])

    def _cast(self, start: int, name: str) -> Node:
        value = self._any()
        self._expect("AS")
        to = self._type()
        self._expect(")")
        kind = nodes.Cast if name == "cast" else nodes.TryCast
        return self._node(start, kind(value, to))

    def _trim(self, start: int, name: str) -> Node:
        for word, function in (("LEADING", "ltrim"), ("TRAILING", "rtrim"), ("BOTH", "trim")):
            after = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
            if self._is_word(word) and after.text not in (")", ",", "."):
                self._advance()
                name = function
                break
        arguments = [] if self._is_word("FROM") else [self._any()]
        if self._accept("FROM"):
            arguments.append(self._any())
            self._expect(")")
            call = self._call(start, name, arguments[::-1])
            call.has_from = True
            return call
        if self._accept(","):
            arguments += self._list(")")
            return self._call(start, name, arguments)
        self._expect(")")
        return self._call(start, name, arguments)

    def _substring(self, start: int, _name: str) -> Node:
        arguments = [self._any()]
        if self._accept("FROM"):
            arguments.append(self._value())
            if self._accept("FOR"):
                arguments.append(self._value())
            self._expect(")")
        elif self._accept(","):
            arguments += self._list(")")
        else:
            raise self._unexpected(",")
        return self._call(start, "substring", arguments)

    def _type(self) -> pa.DataType:
        token = self._token
        name = token.text.upper()
        if token.kind is not Kind.NAME:
            raise self._unexpected()
        if name not in _DECIMALS and name not in TYPES:
            raise self._unsupported(f"a cast to {name}")
        self._advance()
        if not self._accept("("):
            return pa.decimal128(10, 0) if name in _DECIMALS else TYPES[name]
        sizes: list[int] = []
        while self._token.kind is Kind.NUMBER and self._token.text.isdecimal():
            sizes.append(int(self._advance().text))
            if not self._accept(","):
                break
        self._expect(")")
        if name not in _DECIMALS:
            raise self._unsupported(f"a cast to {name} with a length")
        precision, scale = (*sizes, 0)[:2] if len(sizes) in (1, 2) else (0, 0)
        if not 0 < precision <= 38 or scale > precision:
            raise self._unsupported(f"a cast to {name}{tuple(sizes)}")
        return pa.decimal128(precision, scale)
