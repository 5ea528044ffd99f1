r"""Splits a SQL expression into tokens by Spark's rules.

    'it\'s'  'it''s'  "text"      strings: backslash escapes, doubled quotes; r'\d' has no escapes
    X'00ff'                      bytes
    1  1.5  1e3  1L  1.5D        numbers; the suffixes L, S, Y, D, F and BD are Spark's
    name  `a name`               names; a backtick in a name is doubled
    -- to the end  /* ... */     comments

Text in double quotes is a string, as in Spark by default, and never a column.

Source:  Spark's SqlBaseLexer.g4, and `unescapeSQLString` of its SparkParserUtils.
Differs: A name that starts with a digit needs backticks. Adjacent strings are not concatenated.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from lance_stream.errors import InvalidInputError


class Kind(Enum):
    """The kind of a token."""

    NAME = "name"
    QUOTED_NAME = "quoted name"
    STRING = "string"
    BYTES = "bytes"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: The kind.
        text: A name, a symbol or a number as written; the value of a string; the digits of bytes.
        start: The position of its first character.
        stop: One past its last.
    """

    kind: Kind
    text: str
    start: int
    stop: int


_TOKEN: Final = re.compile(
    r"""
      (?P<space>(?:\s|--[^\n]*|/\*.*?\*/)++)
    | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
    | (?P<bytes>[xX](?:'[^']*'|"[^"]*"))
    | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<number>(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?(?:BD|bd|[LlSsYyDdFf])?(?!\w))
    | (?P<name>[^\W\d]\w*)
    | (?P<symbol><=>|<>|<=|>=|!=|==|\|\||::|[=<>!+\-*%()\[\],.]|/(?!\*))
    """,
    re.VERBOSE | re.DOTALL,
)

_KINDS: Final = {
    "quoted": Kind.QUOTED_NAME,
    "bytes": Kind.BYTES,
    "number": Kind.NUMBER,
    "name": Kind.NAME,
    "symbol": Kind.SYMBOL,
}


def split_tokens(text: str) -> list[Token]:
    """Return the tokens of an expression; the last one is of `Kind.END`.

    Raises:
        InvalidInputError: A character belongs to no token, or a quote or comment is not closed.
    """
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        start, position = match.span()
        group, word = str(match.lastgroup), match.group()
        if group == "space":
            continue
        if group == "string":
            tokens.append(Token(Kind.STRING, _unescaped(word), start, position))
        elif group == "raw":
            tokens.append(Token(Kind.STRING, word[2:-1], start, position))
        elif group == "quoted":
            tokens.append(Token(Kind.QUOTED_NAME, word[1:-1].replace("``", "`"), start, position))
        else:
            value = word[2:-1] if group == "bytes" else word
            tokens.append(Token(_KINDS[group], value, start, position))
    tokens.append(Token(Kind.END, "", len(text), len(text)))
    return tokens


def _unreadable(text: str, position: int) -> InvalidInputError:
    if text[position] in "'\"`" or text.startswith("/*", position):
        problem = "a quote or comment is not closed"
    else:
        word = re.match(r"\w+|.", text[position:], re.DOTALL)
        problem = f"unexpected {word.group() if word else ''!r}"
        if text[position].isdigit():
            problem += " (a name that starts with a digit needs backticks)"
    return InvalidInputError(
        f"{text!r} is not a SQL expression: {problem} at character {position + 1}"
    )


_ESCAPE: Final = re.compile(
    r"''|\"\"|\\(?:u(?P<u4>[0-9a-fA-F]{4})|U(?P<u8>[0-9a-fA-F]{8})"
    r"|(?P<octal>[01][0-7]{2})|(?P<letter>.))",
    re.DOTALL,
)

_LETTERS: Final = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    "%": "\\%",  # LIKE needs these two
    "_": "\\_",
}


def _unescaped(word: str) -> str:
    """Return the value of a string literal."""
    quote, inner = word[0], word[1:-1]
    if "\\" not in inner and quote not in inner:
        return inner

    def replace(match: re.Match[str]) -> str:
        if match["letter"] is not None:
            return _LETTERS.get(match["letter"], match["letter"])
        if match["octal"] is not None:
            return chr(int(match["octal"], 8))
        code = match["u4"] or match["u8"]
        if code is not None:
            return _character(int(code, 16), word)
        return quote if match.group() == quote * 2 else match.group()

    # Two escapes with a pair of UTF-16 surrogates are one character.
    return _ESCAPE.sub(replace, inner).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(code: int, word: str) -> str:
    if code > 0x10FFFF:
        raise InvalidInputError(f"{word[:80]} has an escape that is not a Unicode character")
    return chr(code)
