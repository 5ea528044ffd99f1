"""Metadata of tables, schemas and columns: pylance reads ours, and we read pylance's."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import lance_stream

pytestmark = pytest.mark.oracle

ROWS: Final = pa.table({"id": pa.array([1, 2]), "place": pa.array([{"zip": "a", "town": "b"}] * 2)})
COLUMNS: Final = ("id", "place", "place.zip")

Update = tuple[str, Mapping[str, str | None], bool]


def random_updates(seed: int, count: int = 25) -> list[Update]:
    """What is changed ("table", "schema" or a column), how, and whether all is replaced."""
    choose = random.Random(seed)
    return [
        (
            choose.choice(("table", "schema", *COLUMNS)),
            {
                choose.choice("abc"): choose.choice((None, "1", "zwei", "", "ü☃"))
                for _ in range(choose.randrange(3))
            },
            choose.random() < 0.2,
        )
        for _ in range(count)
    ]


def update_ours(uri: str, update: Update) -> None:
    of, entries, replace = update
    ds = lance_stream.open_dataset(uri)
    if of == "table":
        ds.update_metadata(entries, replace=replace)
    elif of == "schema":
        ds.update_metadata(schema=entries, replace=replace)
    else:
        ds.update_metadata(fields={of: entries}, replace=replace)


def update_theirs(uri: str, update: Update) -> None:
    of, entries, replace = update
    ds = lance.dataset(uri)
    if of == "table":
        ds.update_metadata(entries, replace=replace)
    elif of == "schema":
        ds.update_schema_metadata(entries, replace=replace)
    else:
        ds.update_field_metadata({of: entries}, replace=replace)


def read_by_us(uri: str) -> dict[str, Any]:
    ds = lance_stream.open_dataset(uri)
    return {"table": ds.metadata, **maps_of(ds.schema)}


def read_by_them(uri: str) -> dict[str, Any]:
    ds = lance.dataset(uri)
    return {"table": ds.metadata, **maps_of(ds.schema)}


def maps_of(schema: pa.Schema) -> dict[str, Any]:
    struct = schema.field("place")
    fields = (schema.field("id"), struct, struct.type.field("zip"))
    return {"schema": schema.metadata or {}} | {
        name: field.metadata or {} for name, field in zip(COLUMNS, fields, strict=True)
    }


@pytest.mark.parametrize("seed", range(3))
def test_random_updates_give_equal_metadata(tmp_path: Path, seed: int) -> None:
    """Each program applies the same updates to its own table; both read both tables."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        lance.write_dataset(ROWS, uri, enable_stable_row_ids=True)
    for update in random_updates(seed):
        update_ours(ours, update)
        update_theirs(theirs, update)
        assert read_by_us(ours) == read_by_them(ours) == read_by_us(theirs) == read_by_them(theirs)


def test_transactions_are_those_of_pylance(tmp_path: Path) -> None:
    """Other readers of transactions learn what changed, entry by entry."""
    operations = []
    for name, update in (("ours", update_ours), ("theirs", update_theirs)):
        uri = str(tmp_path / name)
        lance.write_dataset(ROWS, uri)
        update(uri, ("table", {"a": "1", "b": None}, False))
        update(uri, ("table", {"c": "3"}, True))
        update(uri, ("schema", {"a": "1"}, False))
        update(uri, ("place.zip", {"a": "1"}, False))
        ds = lance.dataset(uri)
        operations.append([ds.read_transaction(version).operation for version in range(2, 6)])
    assert operations[0] == operations[1]


def test_both_programs_preserve_metadata(tmp_path: Path) -> None:
    """Neither program may lose the other's entries across appends, compactions and restores."""
    uri = str(tmp_path / "table")
    lance.write_dataset(ROWS, uri, enable_stable_row_ids=True)
    expected: dict[str, str] = {}
    for number in range(4):
        key = f"k{number}"
        (update_ours, update_theirs)[number % 2](uri, ("table", {key: "1"}, False))
        (update_theirs, update_ours)[number % 2](uri, ("id", {key: "1"}, False))
        expected[key] = "1"
        lance_stream.open_dataset(uri).append(ROWS)
    lance_stream.open_dataset(uri).compact()
    read = read_by_us(uri)
    assert read == read_by_them(uri)
    assert read["table"] == expected
    assert read["id"] == {key.encode(): b"1" for key in expected}
    lance.dataset(uri, version=2).restore()
    assert read_by_us(uri) == read_by_them(uri)
    lance_stream.open_dataset(uri).restore(5)
    assert read_by_us(uri) == read_by_them(uri)
