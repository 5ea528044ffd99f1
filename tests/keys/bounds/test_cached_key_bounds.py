import uuid
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.arrow_streams import encode_batches
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.bounds.cached_key_bounds import (
    key_bounds,
    read_bounds,
    save_key_bounds,
    write_bounds,
)
from lance_stream.keys.bounds.key_bounds import (
    BoundsLearner,
    ColumnBounds,
    FileBounds,
    KeyBounds,
)
from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.paths import key_bounds_path
from tests.contracts.watched_stores import WatchedStore


def table_of(*keys: list[Any], arrow_type: pa.DataType | None = None) -> TableVersion:
    schema = pa.schema([pa.field("id", arrow_type or pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for key in keys:
        ds = ds.append(pa.table([pa.array(key, schema.field(0).type)], schema))
    return ds.table


def key_field(table: TableVersion) -> Field:
    return table.schema.fields[0]


def file_bounds(table: TableVersion, *keys: list[Any]) -> list[FileBounds]:
    bounds = []
    for fragment, key in zip(table.manifest.fragments, keys, strict=True):
        learner = BoundsLearner(fragment, [key_field(table)])
        learner.add_keys([pa.array(key, table.arrow_schema.field(0).type)])
        bounds += learner.file_bounds()
    return bounds


def saved(table: TableVersion, *keys: list[Any]) -> ColumnBounds:
    column = ColumnBounds(key_field(table))
    column.add(file_bounds(table, *keys))
    write_bounds(table.store, column, table.manifest.fragments)
    return column


@pytest.mark.parametrize(
    ("arrow_type", "keys"),
    [
        (pa.int64(), [[256, 512], [-1, 0], [None]]),
        (pa.string(), [["", "a\0"], ["é" * 70], [None]]),
        (pa.decimal128(20, 0), [[256], [-1, 0], [None]]),
    ],
)
def test_saved_bounds_round_trip(arrow_type: pa.DataType, keys: list[list[Any]]) -> None:
    """A second process must skip the same fragments, for keys of any type and
    files without keys.
    """
    table = table_of(*keys, arrow_type=arrow_type)
    column = saved(table, *keys)
    again = ColumnBounds(key_field(table))
    again.add(read_bounds(table.store, key_field(table)))
    fragments = table.manifest.fragments
    assert again.num_files == 3
    assert again.files_of(fragments) == column.files_of(fragments)
    for number, key in enumerate(keys[:2]):
        lookup = KeyLookup([pa.array(key, arrow_type)])
        may = KeyBounds([again]).may_hold(fragments, lookup)
        assert may.tolist() == [number == 0, number == 1, False]


def test_damage_anywhere_is_noticed() -> None:
    """A wrong bound would skip a fragment that holds the key, and the upsert would insert a
    duplicate.
    """
    table = table_of([1, 2], [3])
    saved(table, [1, 2], [3])
    path = key_bounds_path(key_field(table).id)
    data = table.store.read(path)
    assert len(read_bounds(table.store, key_field(table))) == 2
    damaged = [data[:stop] for stop in (0, 10, 40, len(data) - 1)] + [data + b"\0"]
    for at in range(0, len(data), 7):
        damaged.append(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    for content in damaged:
        table.store.write(path, content)
        assert read_bounds(table.store, key_field(table)) == []


LOW, HIGH, FILE = b"\0" * 8, b"\1" * 8, b"f" * 16


@pytest.mark.parametrize(
    ("columns", "num_bounds"),
    [
        ({}, 1),
        ({"low": [LOW, None], "high": [HIGH, None]}, 2),
        ({"low": [LOW, LOW], "high": [LOW, HIGH]}, 2),
        ({"file": [FILE, None]}, 0),
        ({"column": [0, None]}, 0),
        ({"low": [LOW, None]}, 0),
        ({"high": [HIGH, None]}, 0),
        ({"low": [HIGH], "high": [LOW]}, 0),
        ({"high": [HIGH + b"\0"]}, 0),
        ({"low": [LOW + b"\0"]}, 0),
        ({"column": pa.array([0], pa.int64())}, 0),
    ],
)
def test_one_invalid_bound_discards_all(columns: dict[str, Any], num_bounds: int) -> None:
    """Whatever wrote it does not write what this release reads."""
    field = key_field(table_of())
    values = {"file": [FILE], "column": [0], "low": [LOW], "high": [HIGH]} | columns
    num_rows = max(map(len, values.values()))
    schema = cached_key_bounds._SCHEMA.with_metadata(cached_key_bounds._metadata(field))
    arrays = []
    for index, (part, array) in enumerate(zip(schema, values.values(), strict=True)):
        if not isinstance(array, pa.Array):
            array = pa.array((array * 2)[:num_rows], part.type)
        arrays.append(array)
        schema = schema.set(index, part.with_type(array.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    data = encode_batches(batch.schema, [batch])
    store = table_of().store
    store.write(key_bounds_path(field.id), data + cached_key_bounds._digest(data))
    assert len(read_bounds(store, field)) == num_bounds


def test_saved_bounds_match_type_and_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bounds of another column type or a newer release are ignored."""
    table, other = table_of([1]), table_of(["1"], arrow_type=pa.string())
    saved(table, [1])
    assert len(read_bounds(table.store, key_field(table))) == 1
    assert read_bounds(table.store, key_field(other)) == []
    monkeypatch.setattr(cached_key_bounds, "_RELEASE", b"2")
    assert read_bounds(table.store, key_field(table)) == []


def test_oversized_files_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the end of a file is read, so its size cannot exhaust the memory."""
    table = table_of([1])
    saved(table, [1])
    size = len(table.store.read(key_bounds_path(key_field(table).id)))
    monkeypatch.setattr(cached_key_bounds, "MAX_FILE_BYTES", size)
    assert len(read_bounds(table.store, key_field(table))) == 1
    monkeypatch.setattr(cached_key_bounds, "MAX_FILE_BYTES", size - 1)
    store = WatchedStore(table.store)
    assert read_bounds(store, key_field(table)) == []
    assert [call for call, _ in store.calls] == ["read_end"]


def test_only_the_newest_bounds_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has a maximum size, and new fragments are the ones that most upserts touch."""
    monkeypatch.setattr(cached_key_bounds, "MAX_FILE_ENTRIES", 2)
    table = table_of([1], [2], [3])
    column = saved(table, [1], [2], [3])
    again = ColumnBounds(key_field(table))
    again.add(read_bounds(table.store, key_field(table)))
    fragments = table.manifest.fragments
    assert again.files_of(fragments) == column.files_of(fragments)[1:]


def test_store_failures_are_ignored() -> None:
    """Bounds only save time, so a store that refuses them must not fail the upsert."""

    def fail(call: str, path: str) -> None:
        raise RuntimeError("the store does not answer")

    table = table_of([1])
    store = WatchedStore(table.store, before=fail)
    column = ColumnBounds(key_field(table))
    column.add(file_bounds(table, [1]))
    write_bounds(store, column, table.manifest.fragments)
    assert read_bounds(store, key_field(table)) == []
    assert [call for call, _ in store.calls] == ["write", "read_end"]


def test_processes_read_saved_bounds_once() -> None:
    """A request for every batch would cost more than the bounds save."""
    table = table_of([1], [5])
    saved(table, [1], [5])
    store = WatchedStore(table.store)
    watched = TableVersion(table.uri, {}, store, table.log, table.manifest)
    first, then = key_bounds(watched, ["id"]), key_bounds(watched, ["id"])
    assert first.columns == then.columns
    assert [path for _, path in store.calls] == [key_bounds_path(key_field(table).id)]
    may = then.may_hold(table.manifest.fragments, KeyLookup([pa.array([5])]))
    assert may.tolist() == [False, True]


@pytest.mark.floors
def test_bounds_are_saved_if_it_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bounds are only worth a request where much would have to be read again without them."""
    table = table_of([1], [5])
    bounds = key_bounds(table, ["id"])
    bounds.add_bounds(file_bounds(table, [1], [5]))
    save_key_bounds(table, bounds)
    assert not table.store.exists(key_bounds_path(key_field(table).id))
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 1000)
    save_key_bounds(table, bounds)
    assert len(read_bounds(table.store, key_field(table))) == 2
    table.store.delete(key_bounds_path(key_field(table).id))
    save_key_bounds(table, bounds)  # nothing new
    assert not table.store.exists(key_bounds_path(key_field(table).id))


def test_floating_point_columns_have_no_bounds() -> None:
    """NaN has no position in an order, so bounds could exclude it."""
    table = table_of([1.0], arrow_type=pa.float64())
    assert key_bounds(table, ["id"]).columns == []
