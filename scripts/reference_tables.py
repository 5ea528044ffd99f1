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
from typing import Any, Final

import click

from lance_stream import errors
from lance_stream.cli.commands import PROGRAM, make_program
from lance_stream.cli.main import main
from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.spark import SinkCommit, auto_cdc_sink, lance_sink
from lance_stream.spark.arguments import reader_options
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.arguments.table import Option, Row, as_option, rows_of
from lance_stream.spark.arguments.writer_arguments import BATCH, STREAM, WriterArguments
from lance_stream.storage.options.names import STORES, TITLES

_WORDS: Final[Mapping[str, str]] = {
    "text": "text",
    "location": "a path or URI",
    "columns": "names separated by commas, or a JSON list of names",
    "names": "names separated by commas, or a JSON list of names",
    "trusted_locations": "a location, or a JSON list of them",
    "json_object": "a JSON object",
    "secret_json_object": "a JSON object",
    "timestamp": "a time in ISO 8601, in UTC if it has no zone",
}
"""What the value of an option has to be, by the function that parses its text or checks it."""


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def read_options() -> str:
    """Return the options of `spark.read` and `spark.readStream`, and where each is accepted."""
    return _options(ReaderOptions, reader_options.CALLERS)


def write_options() -> str:
    """Return the options of `df.write` and `df.writeStream`."""
    return _options(WriterArguments, (BATCH, STREAM))


def _options(table: type, callers: Sequence[str]) -> str:
    rows = []
    for row in rows_of(table).values():
        accepted = [caller for caller in callers if not row.callers or caller in row.callers]
        where = "all" if len(accepted) == len(callers) else "; ".join(accepted)
        if row.modes:
            where += f"; mode {' or '.join(row.modes)}"
        for option in row.options:
            value, default = value_of(row, option), _default_of(row, option)
            description = f"{value}; {default}" if default else value
            rows.append([f"`{option.name}`", _as_code(option.help or row.help), description, where])
    return markdown_table(("option", "", "value; default", "in"), rows)


def value_of(row: Row, option: Option) -> str:
    """Return what an option's value has to be, in the words of its own error."""
    for function in (option.parse, row.check):
        words = _WORDS.get(getattr(function, "__name__", ""))
        if words is not None and words != "text":
            return words
    try:
        value = option.value("\0")
        if row.check is not None:
            row.check(as_option(option.name), value)
    except InvalidInputError as error:
        expected = re.search(r"must be (.*?), not ", str(error))
        return "text" if expected is None else expected[1]
    return "text"


def _default_of(row: Row, option: Option) -> str:
    if row.default in (MISSING, None, (), {}) or len(row.options) > 1:
        return ""
    for text in ("true", "false", "none", str(row.default)):
        with suppress(LanceStreamError):
            if option.value(text) == row.default:
                return f"`{text}`"
    return ""


def sink_arguments() -> str:
    """Return the arguments of `lance_sink`."""
    return _parameters(lance_sink)


def auto_cdc_arguments() -> str:
    """Return the arguments of `auto_cdc_sink`."""
    return _parameters(auto_cdc_sink)


def _parameters(function: Callable[..., Any]) -> str:
    meanings = section_of(function, "Args")
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
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
        title = TITLES[store][:1].upper() + TITLES[store][1:]
        parts += [f"### {title}\n", markdown_table(("setting", "names"), rows)]
    return "\n".join(parts)


def section_of(documented: object, title: str) -> dict[str, str]:
    """Return the entries of a section of a docstring, such as its "Args", by name."""
    text = inspect.getdoc(documented) or ""
    match = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    if match is None:
        return {}
    entries = re.split(r"^    (?! )(\w+): ", match[1], flags=re.MULTILINE)
    return {
        name: _as_code(" ".join(description.split()))
        for name, description in zip(entries[1::2], entries[2::2], strict=True)
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
        output = io.StringIO()
        with _width("88"), redirect_stdout(output), suppress(SystemExit):
            main([*words, "--help"])
        title = " ".join((PROGRAM, *words))
        parts.append(f"### {title}\n\n```text\n{output.getvalue().strip()}\n```\n")
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
    "auto cdc arguments": auto_cdc_arguments,
    "metrics": metrics,
    "errors": error_classes,
    "storage options": storage_options,
    "commands": commands,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        print(TABLES[name]())
