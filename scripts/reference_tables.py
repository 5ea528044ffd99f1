"""The tables of docs/reference, made from the code: options, arguments, metrics, errors.

    python scripts/reference_tables.py           # print all of them
    python scripts/reference_tables.py errors    # print one

A page names a table by a line `<!-- table: errors -->`, and the site's hook replaces that line when
the site is built. So a table is never out of date; tests/site checks that each row has its text.
"""

import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import MISSING, fields
from itertools import product
from typing import Any, Final

import click

from lance_stream import errors
from lance_stream.cli.commands import PROGRAM, make_program
from lance_stream.cli.main import main
from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.spark import SinkCommit, lance_sink
from lance_stream.spark.arguments import options
from lance_stream.storage.options.names import STORES

_VALUES: Final = (
    "true", "false", "2", "2026-11-05T14:00:00", "netChanges", "add_columns", "upsert",
    "quarantine", "7 days", '{"region": "x"}', "s3://bucket/x", "x",
)  # fmt: skip
"""Values of which each option accepts one that is not its default."""

_DOORS: Final[Mapping[str, tuple[bool, Mapping[str, str]]]] = {
    "load": (False, {}),
    "feed, batch": (False, {"readChangeFeed": "true", "startingVersion": "1"}),
    "appended rows, stream": (True, {}),
    "feed, stream": (True, {"readChangeFeed": "true"}),
}
"""The ways to read: whether it is a stream, and the options that select it."""

_WORDS: Final[Mapping[str, str]] = {
    "_text": "text",
    "_location": "a path or URI",
    "_columns": "names separated by commas, or a JSON list of names",
    "_locations": "a location, or a JSON list of them",
    "_json_object": "a JSON object",
    "_secret_json_object": "a JSON object",
    "_timestamp": "a time in ISO 8601, in UTC if it has no zone",
}
_MEANINGS: Final[Mapping[str, str]] = {
    "path": "The location of the table; the argument of `load`, `save` and `start`.",
    "storageOptions": "Settings of the store, without secrets: Spark shows them in plans.",
    "secretStorageOptions": "Settings of the store; Spark shows them nowhere.",
    "trustedLocations": "Locations below which the table may name files elsewhere.",
    "schemaEvolution": "How rows may change the columns, as for `lance_sink`.",
    "mode": "What the rows mean, as for `lance_sink`; by default what Spark's mode says.",
    "versionAsOf": "The number of the version to read; by default the newest.",
    "timestampAsOf": "Reads the newest version committed at or before this time.",
    "tag": "Reads the version that the tag names.",
    "branch": "The branch to read or write, which has to exist; by default the main one.",
}
"""What options mean that share an attribute, or whose attribute is described for programmers."""

_BY_KEY: Final = {"mode": "upsert", "on": "id"}
_FITTING: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"txnAppId": "x", "txnVersion": "1"},
    _BY_KEY,
    {**_BY_KEY, "sequenceBy": "lsn", "deleteWhen": "op = 'd'"},
    {"badRows": "quarantine"},
    {"badRows": "quarantine", "txnAppId": "x", "txnVersion": "1"},
)
"""Options of a writer that others need beside them."""

_OF_SPARK: Final = ("checkpointLocation", "queryName", "paths")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def read_options() -> str:
    """Return the options of `spark.read` and `spark.readStream`, and where each is accepted."""
    known = options._OPTIONS
    meanings = attributes_of(options.SourceOptions)
    rows = []
    for option in known.values():
        if option.name in _OF_SPARK:
            continue
        doors = [name for name in _DOORS if _is_accepted(option, name)]
        where = "all" if len(doors) == len(_DOORS) else "; ".join(doors)
        rows.append(_option_row(option, options.SourceOptions, meanings, where))
    return markdown_table(("option", "", "value; default", "in"), rows)


def write_options() -> str:
    """Return the options of `df.write` and `df.writeStream`."""
    meanings = attributes_of(options.WriteOptions)
    rows = [
        _option_row(option, options.WriteOptions, meanings, _writers_of(option))
        for option in options._WRITE_OPTIONS.values()
        if option.name not in _OF_SPARK
    ]
    return markdown_table(("option", "", "value; default", "in"), rows)


def _option_row(option: Any, cls: type, meanings: Mapping[str, str], where: str) -> list[str]:
    meaning = _MEANINGS.get(option.name) or meanings[option.attribute]
    meaning = re.sub(r"; None (?:means|for|if they are) ", "; by default ", meaning)
    default = _default_of(option, cls)
    value = f"{value_of(option)}; {default}" if default else value_of(option)
    return [f"`{option.name}`", meaning, value, where]


def value_of(option: Any) -> str:
    """Return what an option's value has to be, in the words of its own error."""
    if option.parse.__name__ in _WORDS:
        return _WORDS[option.parse.__name__]
    said = None
    try:
        option.parse(option.name, "\0")
    except InvalidInputError as error:
        said = re.search(r"must be (.*?), not ", str(error))
    return "text" if said is None else said[1]


def _default_of(option: Any, cls: type) -> str:
    for field in fields(cls):
        if field.name != option.attribute or field.default in (MISSING, None, ()):
            continue
        for text in ("true", "false", "none", str(field.default)):
            with suppress(LanceStreamError):
                if option.parse(option.name, text) == field.default:
                    return f"`{text}`"
    return ""


def _is_accepted(option: Any, door: str) -> bool:
    """Return whether a way of reading accepts an option, tried with a value that is no default."""
    is_stream, selected = _DOORS[door]
    given = {"path": "t", **selected}
    if option.name in ("path", *selected):
        return True
    if option.name == "readChangeFeed":
        return "feed" in door
    alone = {"startingTimestamp": "startingVersion"}.get(option.name)
    given.pop(alone or "", None)
    for value in _VALUES:
        with suppress(InvalidInputError):
            parsed = options.parse_options({**given, option.name: value})
            if parsed == options.parse_options(given):
                continue  # the default
            (options.check_for_stream if is_stream else options.check_for_batch)(parsed)
            return True
    return False


def _writers_of(option: Any) -> str:
    """Return which writers accept an option."""
    accepted = []
    for streaming, name in ((False, "batch"), (True, "stream")):
        for value, more in product(_VALUES, _FITTING):
            with suppress(InvalidInputError):
                options.parse_write_options({"path": "t", **more, option.name: value}, streaming)
                accepted.append(name)
                break
    return "all" if len(accepted) == 2 else "; ".join(accepted)


def sink_arguments() -> str:
    """Return the arguments of `lance_sink`."""
    meanings = section_of(lance_sink, "Args")
    rows = []
    for name, parameter in inspect.signature(lance_sink).parameters.items():
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        rows.append([f"`{name}`", default, meanings[name]])
    return markdown_table(("argument", "default", ""), rows)


def metrics() -> str:
    """Return what `sink.last_commit` and the log "lance_stream.sink" report."""
    meanings = attributes_of(SinkCommit)
    rows = [
        [f"`{field.name}`", _type_name(field.type), meanings[field.name]]
        for field in fields(SinkCommit)
    ]
    return markdown_table(("field", "type", ""), rows)


def _type_name(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return f"`{re.sub(r'[A-Za-z_.]*[.]', '', text)}`"


def error_classes() -> str:
    """Return all errors, as a tree, with what each means."""
    rows = []
    for cls, depth in _descend(LanceStreamError, 0):
        others = [
            value.__name__ for value in cls.__bases__ if not issubclass(value, LanceStreamError)
        ]
        also = "".join(f" Also a `{name}`." for name in others if name != "Exception")
        indent = "&nbsp;&nbsp;&nbsp;" * depth
        rows.append([f"{indent}`{cls.__name__}`", _first_paragraph(cls) + also])
    return markdown_table(("error", "meaning"), rows)


def _descend(cls: type, depth: int) -> Iterator[tuple[type, int]]:
    yield cls, depth
    for value in cls.__subclasses__():
        if value.__module__ == errors.__name__:
            yield from _descend(value, depth + 1)


def storage_options() -> str:
    """Return the names of storage options, by store."""
    parts = []
    for store, settings in STORES.items():
        rows = [
            [setting.replace("_", " "), ", ".join(f"`{name}`" for name in names)]
            for setting, names in settings.items()
        ]
        parts += [f"### {_TITLES.get(store, store)}\n", markdown_table(("setting", "names"), rows)]
    return "\n".join(parts)


_TITLES: Final[Mapping[str, str]] = {
    "local": "Local disks",
    "s3": "S3",
    "google": "Google Cloud Storage",
    "azure": "Azure Blob Storage",
    "fsspec": "Filesystems of fsspec",
    "manifest store": "Manifest stores",
    "trust": "Trusted locations",
}


def section_of(documented: object, title: str) -> dict[str, str]:
    """Return the entries of a section of a docstring, such as its "Args", by name."""
    text = inspect.getdoc(documented) or ""
    found = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    if found is None:
        return {}
    entries = re.split(r"^    (?! )(\w+): ", found[1], flags=re.MULTILINE)
    return {
        name: _as_code(" ".join(said.split()))
        for name, said in zip(entries[1::2], entries[2::2], strict=True)
    }


def attributes_of(cls: type) -> dict[str, str]:
    """Return what a class says of its attributes."""
    return section_of(cls, "Attributes")


def _first_paragraph(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _as_code(text: str) -> str:
    """Return text with values in quotation marks shown as code."""
    return re.sub(r'(?<![`\w])("[\w. =\']+")(?!`)', r"`\1`", text)


def commands() -> str:
    """Return the help of each command, as the command line prints it."""
    parts = []
    for words in [(), *command_names()]:
        said = io.StringIO()
        with _width("88"), redirect_stdout(said), suppress(SystemExit):
            main([*words, "--help"])
        title = " ".join((PROGRAM, *words))
        parts.append(f"### {title}\n\n```text\n{said.getvalue().strip()}\n```\n")
    return "\n".join(parts)


def command_names() -> list[tuple[str, ...]]:
    """Return the words of all commands, and of their subcommands."""
    names: list[tuple[str, ...]] = []
    program = make_program()
    context = click.Context(program)
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        names.append((name,))
        if isinstance(command, click.Group):
            names += [(name, value) for value in command.list_commands(context)]
    return names


@contextmanager
def _width(columns: str) -> Iterator[None]:
    """Have programs print for a terminal of this width."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = columns
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "read options": read_options,
    "write options": write_options,
    "sink arguments": sink_arguments,
    "metrics": metrics,
    "errors": error_classes,
    "storage options": storage_options,
    "commands": commands,
}

if __name__ == "__main__":
    for asked in sys.argv[1:] or TABLES:
        print(TABLES[asked]())
