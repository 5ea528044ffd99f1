r"""`get_json_object`: a part of a JSON text by its path, in Spark's text form.

    $            the whole value
    .name        a member of an object; also ['a name'], if the name has dots or brackets
    [0]          an item of an array

    string       its value, without quotes      number    an integer as written; a float as Java's
    null         null as a member, 'null' as an item or as the whole value
    object, array   JSON without spaces; characters of two UTF-16 units are escaped: \uD83D\uDE00

The result is null for a text that is not JSON, and for a path to a missing part. As in Spark, text
after the value is ignored, strings can be in single quotes and contain line breaks, and of two
members with one name, the first non-null value counts.

Source:  Spark's GetJsonObjectEvaluator and JsonPathParser, and the settings of its Jackson parser.
Differs: Wildcards are refused, and so are malformed paths, for which Spark returns null.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from lance_stream.expressions.evaluation.casts import float_text
from lance_stream.expressions.nodes import Node, failure, refuse

Path = tuple[str | int, ...]

_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\['(?P<quoted>[^']+)'\]|\[(?P<index>\d{1,18})\]")

_MAX_NUMBER_CHARACTERS: Final = 1000
_SPACES: Final = " \t\n\r"


def parse_json_path(node: Node, text: str) -> Path:
    """Return the names and positions of a path.

    Raises:
        InvalidInputError: The text is not a path, or has a wildcard.
    """
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        name = match and (match["name"] or match["quoted"])
        if match is None or (name and (name[0] == "*" or name[0].isspace())):
            break
        steps.append(name or int(match["index"]))
        position = match.end()
    if not text.startswith("$") or position < len(text):
        raise refuse(
            node,
            f"has the path {text!r}, which has a wildcard or is malformed",
            "a path is like '$.name', '$[0]' or '$.a[0].b'",
        )
    return tuple(steps)


def extract_json(text: str, path: Path) -> str | None:
    """Return the text of the value at a path of a JSON text; None if there is no such value.

    Raises:
        ArrowInvalid: The text is nested too deeply.
    """
    try:
        for value in _values_at(_parse(text), path):
            return _as_unicode(value) if isinstance(value, str) else _json_text(value)
    except ValueError:
        pass
    except RecursionError:
        raise failure(f"the JSON text {text[:80]!r} is nested too deeply") from None
    return None


# --- parsing


class _Members(tuple[tuple[str, Any], ...]):
    """The members of an object, in order; a name can occur twice."""


def _integer(digits: str) -> int:
    return int(_short(digits))


def _float(digits: str) -> float:
    return float(_short(digits))


def _short(digits: str) -> str:
    if len(digits) > _MAX_NUMBER_CHARACTERS:
        raise ValueError(digits)
    return digits


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Members,
    parse_int=_integer,
    parse_float=_float,
    parse_constant=_no_constant,
    strict=False,
)


def _parse(text: str) -> Any:
    """Return the value at the start of a text; objects as `_Members`."""
    start = len(text) - len(text.lstrip(_SPACES))
    try:
        value, stop = _DECODER.raw_decode(text, start)
    except ValueError:
        if "'" not in text:
            raise
        text = _STRING.sub(_in_double_quotes, text)
        value, stop = _DECODER.raw_decode(text, start)
    if isinstance(value, bool) or value is None:
        if re.match(r"[\w$]", text[stop:]):
            raise ValueError(text)
    elif isinstance(value, int | float) and text[stop : stop + 1] not in ("", *_SPACES):
        raise ValueError(text)
    return value


_STRING: Final = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' """, re.VERBOSE | re.DOTALL)
_QUOTE: Final = re.compile(r'\\.|"', re.DOTALL)


def _in_double_quotes(match: re.Match[str]) -> str:
    """Return a string in double quotes, without escapes of single ones."""
    inner = _QUOTE.sub(
        lambda part: {r"\'": "'", '"': r"\""}.get(part.group(), part.group()), match.group()[1:-1]
    )
    return f'"{inner}"'


# --- extraction


def _values_at(value: Any, path: Path) -> Iterator[Any]:
    """Yield the values at a path: several if a name occurs twice."""
    pending = [(value, 0)]
    while pending:
        value, depth = pending.pop()
        if depth == len(path):
            yield value
            continue
        step = path[depth]
        if isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                pending.append((value[step], depth + 1))
        elif isinstance(value, _Members):
            items = [item for name, item in value if name == step and item is not None]
            pending += [(item, depth + 1) for item in reversed(items)]


# --- texts


def _as_unicode(text: str) -> str | None:
    """Return a string; None if it has half of a surrogate pair, which is not a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


_ESCAPED: Final = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
_SHORT_ESCAPES: Final = {
    '"': r"\"",
    "\\": r"\\",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
}


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    units = character.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = float_text(np.float64(value))
        return text if np.isfinite(value) else f'"{text}"'
    if isinstance(value, _Members):
        return "{" + ",".join([f"{_quoted(name)}:{_json_text(item)}" for name, item in value]) + "}"
    return "[" + ",".join(list(map(_json_text, value))) + "]"
