"""The tables of the reference have every option, argument, metric, error and command."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lance_stream import errors
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.arguments.table import options_of
from lance_stream.spark.arguments.writer_arguments import WriterArguments

ROOT = Path(__file__).parent.parent.parent
MARKER = re.compile(r"^<!-- table: ([\w ]+) -->$", re.MULTILINE)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    path = ROOT / "scripts" / "reference_tables.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize(
    "name", ["read options", "write options", "sink arguments", "auto cdc arguments", "metrics"]
)
def test_every_row_says_what_it_means(tables: ModuleType, name: str) -> None:
    header, _, *rows = rows_of(tables.TABLES[name]())
    assert len(rows) > 5
    meaning = header.index("")
    assert [row[0] for row in rows if len(row[meaning]) < 10] == []


def test_every_option_is_in_its_table_and_accepted_somewhere(tables: ModuleType) -> None:
    for name, known in (
        ("read options", ReaderOptions),
        ("write options", WriterArguments),
    ):
        rows = rows_of(tables.TABLES[name]())[2:]
        expected = {option.name for option in options_of(known).values()}
        assert {row[0].strip("`") for row in rows} == expected
        assert [row[0] for row in rows if not row[3]] == []


def test_ends_of_intervals_belong_to_the_feed(tables: ModuleType) -> None:
    where = {row[0].strip("`"): row[3] for row in rows_of(tables.TABLES["read options"]())}
    assert where["versionAsOf"] == "load"
    assert where["endingVersion"] == "feed, batch"
    assert where["filter"] == "all"


def test_every_error_is_in_the_table(tables: ModuleType) -> None:
    table = tables.TABLES["errors"]()
    classes = [var for var in vars(errors).values() if isinstance(var, type)]
    assert len(classes) > 10
    assert [class_.__name__ for class_ in classes if f"`{class_.__name__}`" not in table] == []


def test_every_command_shows_its_help(tables: ModuleType) -> None:
    text = tables.TABLES["commands"]()
    assert len(tables.command_names()) > 5
    for words in tables.command_names():
        assert f"### lance-stream {' '.join(words)}\n" in text
    assert text.count("Usage: ") == len(tables.command_names()) + 1


def test_every_table_is_on_one_page(tables: ModuleType) -> None:
    named = [
        name for page in ROOT.glob("docs/**/*.md") for name in MARKER.findall(page.read_text())
    ]
    assert sorted(named) == sorted(tables.TABLES)
