r"""Patterns of LIKE, and regular expressions.

Spark uses Java's regular expressions, and Arrow those of RE2. Syntax with the same meaning in both
is passed on, some is translated, and everything else is refused:

    .           does not match \n, \r, U+0085, U+2028 and U+2029; in RE2 only \n
    \s \S       in RE2 without the vertical tab
    $           at the end of the pattern, or of an alternative: also before a final line break
    refused     \b, flags, look-around, back references, possessive quantifiers, nested classes
"""

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.expressions.nodes import Node, refuse

WILDCARDS: Final[Mapping[str, str]] = {"%": ".*", "_": "."}


def parts_of_like(node: Node, pattern: str, escape: str) -> list[tuple[str, bool]]:
    """Return the characters of a LIKE pattern without escapes, and whether each is literal.

    Raises:
        InvalidInputError: An escape character is not followed by a wildcard or itself.
    """
    parts: list[tuple[str, bool]] = []
    letters = iter(pattern)
    for letter in letters:
        if letter != escape:
            parts.append((letter, letter not in WILDCARDS))
            continue
        escaped = next(letters, None)
        if escaped is None:
            raise refuse(node, "has an escape character at the end of its pattern", "double it")
        if escaped not in ("%", "_", escape):
            raise refuse(
                node,
                f"has an escape character before {escaped!r}, which needs none",
                r"write a backslash as '\\' in a string, and as '\\\\' in a pattern",
            )
        parts.append((escaped, True))
    return parts


_LINE_ENDS: Final = r"\n\r\x{85}\x{2028}\x{2029}"
_TRANSLATED: Final[Mapping[str, str]] = {
    ".": f"[^{_LINE_ENDS}]",
    r"\s": r"[\t\n\x0B\f\r ]",
    r"\S": r"[^\t\n\x0B\f\r ]",
}
_END: Final = rf"(?:\r\n|[{_LINE_ENDS}])?\z"

_PART: Final = re.compile(
    r"""
      (?P<class>\[\^?(?:\\[dDwWtnrf\\.\[\]()*+?{}|^$/\-]|[^\\\[\]&^])+\])
    | (?P<escape>\\[dDwWsStnrfAz\\.\[\]()*+?{}|^$/\-"'])
    | (?P<open>\((?:\?:)?(?!\?))
    | (?P<close>\))
    | (?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{]))
    | (?P<end>\$)
    | (?P<other>[^\\\[\](){}*+?$])
    """,
    re.VERBOSE | re.DOTALL,
)


def as_regex(node: Node, pattern: str) -> str:
    """Translate a regular expression from Java's syntax to RE2's.

    Raises:
        InvalidInputError: It uses syntax whose meaning may differ.
    """
    translated, position, depth = [], 0, 0
    while position < len(pattern):
        match = _PART.match(pattern, position)
        if match is None:
            raise refuse(
                node,
                f"has {pattern[position : position + 10]!r} in its pattern, which is not supported",
            )
        part, position = match.group(), match.end()
        depth += (match.lastgroup == "open") - (match.lastgroup == "close")
        if match.lastgroup == "end":
            rest = pattern[position:]
            if rest.strip(")") and not (depth == 0 and rest.startswith("|")):
                raise refuse(
                    node, "has a '$' within its pattern, which has another meaning in Java"
                )
            part = _END
        translated.append(_TRANSLATED.get(part, part))
    regex = "".join(translated)
    try:
        pc.match_substring_regex(pa.array([""]), regex)
    except pa.ArrowInvalid as error:
        raise refuse(node, f"has an invalid pattern: {error}") from None
    return regex
