"""The remedies in error messages: commands on the command line, Python calls elsewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lance_stream
from lance_stream import other_names
from lance_stream.cli import advice

PACKAGE = Path(lance_stream.__file__).parent

PYTHON_CALL = re.compile(
    r"\bds(?:\.\w+)+|\btag_source=|\blance_stream\.[a-z_.]+(?=\()|\bopen_dataset\(uri,"
)

WITHOUT_COMMAND = {
    "ds.add_columns",
    "ds.alter_columns",
    "ds.append",
    "ds.delete",
    "ds.drop_columns",
    "ds.rename_columns",
    "ds.update",
    "ds.update_config",
    "ds.upsert",
    "lance_stream.claim_versions",
    "lance_stream.create_dataset",
    "lance_stream.derive",
    "lance_stream.forget_versions",
    "lance_stream.history_schema",
    "lance_stream.leave_manifest_store",
    "lance_stream.spark.derive",
}


def texts_in(source: str) -> Iterator[str]:
    """Yield the texts of a module except docstrings, with `x` for each interpolated value."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    templates = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    fragments = {part for template in templates for part in template.values}
    for template in templates:
        parts = template.values
        yield "".join(str(p.value) if isinstance(p, ast.Constant) else "'x'" for p in parts)
    for node in nodes:
        if isinstance(node, ast.Constant) and node not in docstrings | fragments:
            yield str(node.value)


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """Return the messages of the package whose remedy is a Python call."""
    not_printed = {Path(advice.__file__), Path(other_names.__file__)}
    paths = [path for path in PACKAGE.rglob("*.py") if path not in not_printed]
    sources = [source for path in paths if PYTHON_CALL.search(source := path.read_text())]
    return [text for source in sources for text in texts_in(source) if PYTHON_CALL.search(text)]


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in advice._COMMANDS])
def test_every_pattern_matches_a_message(pattern: str, messages: list[str]) -> None:
    """If a message is reworded, its pattern no longer matches, and users see a Python call."""
    assert any(re.search(pattern, message) for message in messages)


def test_commands_replace_whole_calls(messages: list[str]) -> None:
    """The arguments of a Python call make no sense after a command."""
    replaced = [text for message in messages if (text := advice.as_commands(message)) != message]
    assert replaced
    assert [text for text in replaced if "`(" in text or PYTHON_CALL.search(text)] == []


def test_only_calls_without_commands_remain(messages: list[str]) -> None:
    """Users of the command line cannot run a Python call, so a command must replace it."""
    remaining = {
        call for message in messages for call in PYTHON_CALL.findall(advice.as_commands(message))
    }
    assert remaining == WITHOUT_COMMAND
