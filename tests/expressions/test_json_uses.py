"""JSON columns in expressions: every door refuses their bytes, tests nulls and extracts parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli import main as program
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import parse_predicate, parse_value
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.source.table_reader import open_requested, schema_of_table
from lance_stream.spark.writer.checked_rows import plan_checks
from lance_stream.spark.writer.delete_conditions import resolve_delete_condition
from lance_stream.spark.writer.lance_writer import plan
from lance_stream.spark.writer.upsert_writer import plan_upsert

JSON = pa.field("j", pa.json_())
PAIR = pa.struct([JSON, ("n", pa.int64())])
STORED = to_arrow(
    from_arrow(
        pa.schema(
            [
                ("id", pa.int64()),
                JSON,
                ("name", pa.string()),
                ("s", PAIR),
                ("items", pa.list_(PAIR)),
                ("texts", pa.list_(pa.json_())),
                ("m", pa.map_(pa.string(), pa.json_())),
            ]
        )
    )
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("j", "j"),
        ("j = 'x'", "j"),
        ("(j) = 'x'", "(j)"),
        ("CAST(j AS string)", "j"),
        ("j::string || name", "j"),
        ("length(j) > 1", "j"),
        ("j <=> NULL", "j"),
        ("j IN ('x')", "j"),
        ("j IS NULL OR j BETWEEN 'a' AND 'b'", "j"),
        ("coalesce(j, X'00') IS NULL", "j"),
        ("m[j] IS NULL", "j"),
        ("s", "s"),
        ("s.j = 'x'", "s.j"),
        ("(s).J = 'x'", "(s).J"),
        ("coalesce(s, s).n = 1", "s"),
        ("items[0].j = 'x'", "items[0].j"),
        ("length(get(items, 0).j)", "get(items, 0).j"),
        ("texts[0] = 'x'", "texts[0]"),
        ("array_contains(texts, 'x')", "texts"),
        ("m['k'] = 'x'", "m['k']"),
        ("get_json_object(s, '$') = 'x'", "s"),
    ],
)
def test_json_values_are_refused_by_name(text: str, part: str) -> None:
    """An expression would see binary JSON, and its text or length is never what was meant."""
    for parse in (parse_predicate, parse_value):
        with pytest.raises(InvalidInputError, match="can only test it with IS NULL") as caught:
            parse(text, STORED)
        assert f"uses {part!r}, which " in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("j IS NULL", "(j) IS NOT NULL", "isnull(j)", "NOT isnotnull(j) AND id = 1", "s IS NULL"),
        *("s.j IS NULL", "s.n = 1", "(s).n = 1", "items[0].n = 1", "items[0] IS NULL"),
        *("get(items, 0).j IS NULL", "texts[0] IS NULL", "size(texts) = 1", "m['k'] IS NOT NULL"),
    ],
)
def test_nulls_beside_json_can_be_tested(text: str) -> None:
    """JSON has one meaning in bytes and in text, and so have the other parts of a condition."""
    assert parse_predicate(text, STORED).text == text


@pytest.mark.parametrize("text", ["get(items, j) IS NULL", "get_json_object('{}', j) IS NULL"])
def test_json_is_no_second_argument(text: str) -> None:
    """The other arguments of functions that take JSON are numbers or literals."""
    for parse in (parse_predicate, parse_value):
        with pytest.raises(InvalidInputError):
            parse(text, STORED)


@pytest.mark.parametrize("text", ["s.q IS NULL", "items[0].q = 1", "(s).q = 1", "(id).q = 1"])
def test_absent_parts_beside_json_are_named(text: str) -> None:
    """A misspelled part of a struct is the user's error, whatever its other parts are."""
    for parse in (parse_predicate, parse_value):
        with pytest.raises((NotFoundError, InvalidInputError), match="'q'"):
            parse(text, STORED)


ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("j", pa.string()),
        ("flag", pa.bool_()),
        ("s", pa.struct([("j", pa.string())])),
    ]
)
TABLE = pa.schema([("id", pa.int64()), JSON, ("flag", pa.bool_()), ("s", PAIR)])
INCOMING = pa.Table.from_pylist([{"id": 1, "j": "[2]", "s": {"j": "[3]"}}], ROWS)
"""A row for each condition; its struct lacks a part of the table's."""


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return lance_stream.create_dataset(tmp_path / "t", TABLE).upsert(INCOMING, "id")


def _filtered(ds: Dataset, condition: str, **options: str) -> None:
    reader_options = parse_reader_options({"path": ds.uri, "filter": condition, **options})
    if options:
        schema_of_changes(open_for_changes(reader_options), reader_options)
    else:
        schema_of_table(open_requested(reader_options), reader_options)


def _checked(ds: Dataset, condition: str, **options: str) -> None:
    """Plan what a batch of the format checks."""
    writer_options = parse_writer_options({"path": ds.uri, "expect": condition, **options}, False)
    columns = spark_schema(carrier_schema(ROWS))
    job = (
        plan_upsert(writer_options, columns)
        if options
        else plan(writer_options, columns, overwrite=False)
    )
    assert plan_checks(writer_options, job, columns, case_sensitive=False).rules is not None


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Run a command, and raise the error that it prints."""
    if program.main(list(words)):
        raise InvalidInputError(capsys.readouterr().err)


Door = Callable[[Dataset, str, pytest.CaptureFixture[str]], Any]

DOORS: dict[str, Door] = {
    "scan": lambda ds, text, _: list(ds.scan(filter=text.format("j"))),
    "to_table": lambda ds, text, _: ds.to_table(["id"], filter=text.format("j")),
    "count_rows": lambda ds, text, _: ds.count_rows(text.format("s.j")),
    "delete": lambda ds, text, _: ds.delete(text.format("j")),
    "update where": lambda ds, text, _: ds.update({"id": "2"}, text.format("j")),
    "update value": lambda ds, text, _: ds.update({"flag": text.format("j")}),
    "add_columns": lambda ds, text, _: ds.add_columns({"new": text.format("j")}),
    "append expect": lambda ds, text, _: ds.append(INCOMING, expect=text.format("j")),
    "upsert expect": lambda ds, text, _: ds.upsert(INCOMING, "id", expect=text.format("s.j")),
    "when_matched": lambda ds, text, _: ds.upsert(
        INCOMING, "id", when_matched=text.format("target.j")
    ),
    "when_matched, incoming": lambda ds, text, _: ds.upsert(
        INCOMING, "id", when_matched=text.format("source.j")
    ),
    "when_matched, incomplete": lambda ds, text, _: ds.upsert(
        INCOMING, "id", when_matched=text.format("source.s.j")
    ),
    "when_not_matched": lambda ds, text, _: ds.upsert(
        INCOMING, "id", when_not_matched=text.format("source.j")
    ),
    "format filter": lambda ds, text, _: _filtered(ds, text.format("j")),
    "format feed": lambda ds, text, _: _filtered(ds, text.format("j"), readChangeFeed="true"),
    "format expect": lambda ds, text, _: _checked(ds, text.format("j")),
    "format upsert": lambda ds, text, _: _checked(ds, text.format("j"), mode="upsert", on="id"),
    "query": lambda ds, text, capsys: _run(capsys, "query", ds.uri, "--where", text.format("j")),
    "changes": lambda ds, text, capsys: _run(
        capsys, "changes", ds.uri, "--filter", text.format("j")
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_entry_points_tell_json_from_bytes(
    ds: Dataset, door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every entry point binds expressions to its own columns and could lose the mark of JSON."""
    with pytest.raises(InvalidInputError, match="which is JSON: the table stores binary JSON"):
        DOORS[door](ds, "length({0}) = 3", capsys)
    assert lance_stream.open_dataset(ds.uri).version == ds.version
    DOORS[door](ds, "{0} IS NOT NULL AND get_json_object({0}, '$[0]') IN ('2', '3')", capsys)


def test_conditions_on_incoming_texts_see_texts(ds: Dataset) -> None:
    """Rows that delete are chosen by what arrives, before anything is stored as JSON."""
    columns = spark_schema(carrier_schema(ROWS))
    assert (
        resolve_delete_condition("length(j) = 3", columns, case_sensitive=False) == "length(j) = 3"
    )
    assert ds.upsert(INCOMING, "id", delete_when="length(j) = 4").count_rows() == 1
    assert ds.upsert(INCOMING, "id", delete_when="length(j) = 3").count_rows() == 0
    stored = pa.table({"id": [1], "j": pa.array([b"\x80\0\0\0"], pa.large_binary())})
    stored = stored.cast(pa.schema([TABLE.field(0), STORED.field("j")]))
    with pytest.raises(InvalidInputError, match="which is JSON"):
        ds.upsert(stored, "id", delete_when="length(j) = 4")


def test_expression_texts_are_stored_as_json(ds: Dataset) -> None:
    """Updates must store text as an append does, and refuse what is not JSON."""
    ds = ds.add_columns({"name": "'{\"b\": 1}'"}).update({"j": "name"})
    assert ds.to_table()["j"].to_pylist() == ['{"b":1}']
    assert ds.update({"j": "'[ 1 ]'"}).to_table()["j"].to_pylist() == ["[1]"]
    with pytest.raises(InvalidInputError, match=r"'j': .*'x' cannot be stored as JSON"):
        ds.update({"j": "'x'"})
    assert ds.update({"j": "NULL"}, "j IS NOT NULL").count_rows("j IS NULL") == 1
