"""The documents name commands, options and arguments that exist, and every command."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from lance_stream.cli.commands import COMMANDS, make_program

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
CALL = re.compile(r"^(?:\$ )?lance-stream (.*)$", re.MULTILINE)


def calls_of(document: Path) -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    calls = [shlex.split(call, comments=True) for block in blocks for call in CALL.findall(block)]
    return [list(takewhile(lambda word: word not in ("|", ">"), call)) for call in calls]


CALLS = [words for document in DOCUMENTS for words in calls_of(document)]


def parse(words: list[str]) -> None:
    """Parse a call, and run nothing."""
    command: click.Command = make_program()
    context = command.make_context("lance-stream", list(words))
    while isinstance(command, click.Group):
        attribute = "_protected_args" if hasattr(context, "_protected_args") else "protected_args"
        rest = [*getattr(context, attribute), *context.args]
        _, subcommand, words = command.resolve_command(context, rest)
        assert subcommand is not None
        command = subcommand
        context = command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_calls_in_documents_are_valid(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers copy commands from the documents, where renamed options would remain unnoticed."""
    monkeypatch.chdir(tmp_path)
    for word in words:
        if re.fullmatch(r"[a-z]+\.log", word):  # a file that has to exist
            (tmp_path / word).touch()
    parse(words)


def test_wrong_calls_would_be_noticed() -> None:
    """A parser that accepts everything, or a search that finds no call, would make the test above
    pass.
    """
    assert len(CALLS) > 30
    with pytest.raises(click.UsageError):
        parse(["cleanup", "x", "--oldest", "7d"])


def every_context() -> Iterator[click.Context]:
    """Yield the context of each command and subcommand."""
    waiting: list[click.Context] = [
        click.Context(make_program(), info_name="lance-stream", terminal_width=80)
    ]
    while waiting:
        context = waiting.pop()
        yield context
        if isinstance(context.command, click.Group):
            for name in context.command.list_commands(context):
                command = context.command.get_command(context, name)
                assert command is not None
                waiting.append(
                    click.Context(command, parent=context, info_name=name, terminal_width=80)
                )


def test_help_fits_80_columns_uncut() -> None:
    """Click cuts long descriptions with an ellipsis, which hides what a command does."""
    pages = [value.get_help() for value in every_context()]
    assert len(pages) > len(COMMANDS)
    lines = [line for page in pages for line in page.splitlines()]
    assert [line for line in lines if len(line) > 80 or line.endswith(("...", "\\b"))] == [
        line for line in lines if line.endswith(("COMMAND [ARGS]...", "COMMAND [ARGUMENTS]..."))
    ]


def test_every_command_is_described() -> None:
    """A command that is missing from the reference page is hard to discover."""
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    missing = [name for name in COMMANDS if f"`{name}`" not in page]
    assert missing == []
