"""Parses the texts of options, which is how Spark passes their values.

Each function takes what errors call the option, and its text, and raises `InvalidInputError` if the
text is invalid. Spark shows the options of views in plans, its UI and event logs, except those
whose name or value contains a word such as "secret". So `storageOptions` may hold a secret only
together with such a word, and errors show neither it nor `secretStorageOptions`.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.timestamps import parse_moment
from lance_stream.storage.locations import check_is_shared

LATEST: Final = "latest"


def text(called: str, text: str) -> str:
    """Return a text that is not empty."""
    if not text.strip():
        raise InvalidInputError(f"{called} is empty")
    return text


def location(called: str, uri: str) -> str:
    """Return a location that all processes of Spark share."""
    check_is_shared(uri)
    return text(called, uri)


def table_id(called: str, value: object) -> tuple[str, ...] | None:
    """Return the name of a table in a Lance namespace, as text also a JSON list; None for none."""
    from lance_stream.storage.namespaces.locating import as_path  # few tables have such a name

    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise InvalidInputError(
                f"{called} must be names with dots between them, or a JSON list of names, not "
                f"{value!r}"
            ) from None
    return None if value is None else as_path(value)


def boolean(called: str, text: str) -> bool:
    """Return true or false."""
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise InvalidInputError(f"{called} must be true or false, not {text!r}") from None


def whole_number(minimum: int) -> Callable[[str, str], int]:
    """Return a function that parses a whole number from a minimum on."""

    def parse(called: str, text: str) -> int:
        stripped = text.strip()
        if not (stripped.isascii() and stripped.isdigit()) or int(stripped) < minimum:
            raise InvalidInputError(f"{called} must be a whole number from {minimum}, not {text!r}")
        return int(stripped)

    return parse


def size_bytes(called: str, text: str) -> int:
    """Return a number of bytes, also with a unit of Spark: `64m`, `1gb`."""
    match = re.fullmatch(r"([1-9]\d*)\s*(b|[kmgtp]b?)?", text.strip().lower())
    if match is None:
        raise InvalidInputError(
            f"{called} must be a number of bytes from 1, as in 67108864, 64m or 1g, not {text!r}"
        )
    power = "bkmgtp".index((match[2] or "b")[0])
    return int(match[1]) << 10 * power


def version(called: str, text: str) -> int:
    """Return the number of a version."""
    try:
        return whole_number(1)(called, text)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}; the version of a tag is read with the option 'tag', that of a time with "
            "'timestampAsOf'"
        ) from None


def starting_version(called: str, text: str) -> int | str:
    """Return the number of the version that a feed starts with, or `LATEST`."""
    if text.strip().lower() == LATEST:
        return LATEST
    try:
        return whole_number(0)(called, text)
    except InvalidInputError:
        raise InvalidInputError(
            f"{called} must be a whole number from 0, or {LATEST!r}, not {text!r}"
        ) from None


def timestamp(called: str, text: str) -> datetime:
    """Return a time in UTC."""
    try:
        return parse_moment(text)
    except ValueError:
        raise InvalidInputError(
            f"{called} must be a time in ISO 8601 format, for example 2026-11-05T14:00:00+01:00 "
            f"(UTC if no zone is given), not {text!r}"
        ) from None


def columns(called: str, text: str) -> tuple[str, ...]:
    """Return names separated by commas, or in a JSON list."""
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            names = json.loads(stripped)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidInputError(
                f"{called} must be names separated by commas, or a JSON list of names, not {text!r}"
            )
    else:
        names = [name.strip() for name in stripped.split(",")]
    if not names or not all(names):
        raise InvalidInputError(f"{called} has an empty name in {text!r}")
    return tuple(names)


def vector_sizes(called: str, text: str) -> dict[str, Any]:
    """Return sizes by name, from `embedding:768, title:128`."""
    sizes: dict[str, Any] = {}
    for part in text.split(","):
        name, _, size = part.rpartition(":")
        if not name.strip() or not size.strip().isdecimal():
            raise InvalidInputError(
                f"{called} must be names of columns with their numbers of items, such as "
                f"embedding:768, not {text!r}"
            )
        sizes[name.strip()] = int(size)
    return sizes


def conditions(called: str, text: str) -> object:
    """Return conditions: one, a JSON list of them, or a JSON object with a name for each."""
    if not text.lstrip().startswith(("[", "{")):
        return text
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, list | dict) and value:
            return value
    raise InvalidInputError(
        f"{called} must be a condition, a JSON list of conditions, or a JSON object with a name "
        f'for each, such as {{"price": "price >= 0"}}, not {text!r:.200}'
    )


def trusted_locations(called: str, text: str) -> dict[str, Any]:
    """Return the storage option of trusted locations: a JSON list of them, or a single one."""
    if not text.lstrip().startswith("["):
        return {"trusted_locations": (text,)}
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return {"trusted_locations": tuple(value)}
    raise InvalidInputError(
        f"{called} must be a location or a JSON list of them, such as "
        f'["s3://bucket/blobs"], not {text!r}'
    )


def secret_json_object(called: str, text: str) -> dict[str, Any]:
    """Return a JSON object that errors do not show."""
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    raise InvalidInputError(
        f'{called} must be a JSON object, such as {{"aws_region": "eu-west-1"}}; its value may be '
        "secret and is not shown here"
    )


_SPARK_HIDES: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""The default of Spark's `spark.redaction.regex`, which Spark applies to names and values."""

_HOLDS_A_SECRET: Final = re.compile(
    r'"[a-z_]*(account_key|access_key|master_key|sas_key|customer_key_base64|connection_string'
    r'|credential)"\s*:'
    r"|private_key"
    r"|://[^/@\"]*:[^/@\"]*@",
    re.IGNORECASE,
)
"""Secrets in a JSON object without those words: by the names of their options, in the JSON of a
key that Google issued, or in a URI."""


def json_object(called: str, text: str) -> dict[str, Any]:
    """Return a JSON object without a secret that Spark would show."""
    value = secret_json_object(called, text)
    if _HOLDS_A_SECRET.search(text) and not _SPARK_HIDES.search(text):
        raise InvalidInputError(
            f"{called} contains a secret that Spark would show in plans and in its UI. Spark hides "
            "options with 'secret' in their name: use the option 'secretStorageOptions' instead, "
            "or register(spark, storage_options={...}), or Spark's own settings"
        )
    return value


def one_of(*choices: str) -> Callable[[str, str], str]:
    """Return a function that parses one of some words, in any case."""
    by_lower = {choice.lower(): choice for choice in choices}

    def parse(called: str, text: str) -> str:
        if text.strip().lower() not in by_lower:
            raise InvalidInputError(f"{called} must be {' or '.join(choices)}, not {text!r}")
        return by_lower[text.strip().lower()]

    return parse


def lower(_called: str, text: str) -> str:
    """Return a word in lower case."""
    return text.strip().lower()


def one_path(called: str, text: str) -> None:
    """Refuse several paths."""
    raise InvalidInputError(f"a table has one path, but load() was given {called}: {text}")
