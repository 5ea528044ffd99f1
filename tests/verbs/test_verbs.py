"""The verbs on a table, without another program."""

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    CorruptDataError,
    Dataset,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


def ids_of(ds: Dataset) -> list[int]:
    ids: list[int] = ds.to_table(columns=["id"])["id"].to_pylist()
    return ids


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4()}/table"


@pytest.fixture
def ds(uri: str) -> Dataset:
    """Six rows in two fragments, made by versions 2 and 3."""
    empty = lance_stream.create_dataset(uri, SCHEMA)
    return empty.append(rows(0, 1, 2)).append(rows(3, 4, 5))


# --- creating and opening


@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
def test_a_new_table_has_no_rows(uri: str, file_version: str) -> None:
    """An empty table has no fragments, which every reading verb has to cope with."""
    dataset = lance_stream.create_dataset(uri, SCHEMA, file_version=file_version, config={"a": "b"})
    opened = lance_stream.open_dataset(uri)
    for version in (dataset, opened):
        assert version.version == 1
        assert version.schema.equals(SCHEMA)
        assert version.file_version == file_version
        assert version.has_stable_row_ids
        assert version.config == {"a": "b"}
        assert version.uri == uri
        assert version.count_rows() == 0
        assert version.to_table().num_rows == 0
        assert version.verify() == []


def test_existing_tables_are_not_recreated(ds: Dataset) -> None:
    """Creating must never replace data; the message names the version that exists."""
    with pytest.raises(InvalidInputError, match=r"a dataset already exists at .*, at version 3"):
        lance_stream.create_dataset(ds.uri, SCHEMA)


def test_concurrent_creations_succeed_once(uri: str) -> None:
    """The first version is created like any other: exactly one writer wins its name."""
    outcomes: list[str] = []
    gate = threading.Barrier(4)

    def make() -> None:
        gate.wait()
        try:
            lance_stream.create_dataset(uri, SCHEMA)
            outcomes.append("made")
        except InvalidInputError:
            outcomes.append("refused")

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert sorted(outcomes) == ["made", "refused", "refused", "refused"]
    assert lance_stream.open_dataset(uri).version == 1


def test_primary_keys_are_declared_not_null(uri: str) -> None:
    """Lance stores the key's order in field metadata, and a key column must not be nullable."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int8())])
    dataset = lance_stream.create_dataset(uri, schema, primary_key=["b", "a"])
    positions = {field.name: field.primary_key_position for field in dataset.table.schema.fields}
    assert positions == {"a": 2, "b": 1, "c": None}
    assert [field.nullable for field in dataset.schema] == [False, False, True]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"schema": pa.schema([])}, "at least one column"),
        ({"schema": {"a": "int"}}, r"pa\.schema"),
        ({"schema": pa.schema([("_rowid", pa.int64())])}, "_rowid"),
        ({"schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, "different names"),
        ({"primary_key": ["nope"]}, "nope"),
        ({"primary_key": "nope"}, "nope"),
        ({"primary_key": ["id", "id"]}, "twice"),
        ({"config": {"a": 1}}, "text to text"),
        ({"file_version": "7.0"}, "no file version"),
    ],
)
def test_invalid_arguments_create_no_table(uri: str, arguments: dict[str, Any], named: str) -> None:
    """A half-created table would block the corrected call."""
    with pytest.raises(InvalidInputError, match=named):
        lance_stream.create_dataset(uri, **{"schema": SCHEMA, **arguments})
    with pytest.raises(NotFoundError):
        lance_stream.open_dataset(uri)


def test_the_unstable_file_version_is_refused(uri: str) -> None:
    """The format of 2.3 may still change, so files written today might be unreadable later."""
    with pytest.raises(UnsupportedFeatureError, match=r"2\.3"):
        lance_stream.create_dataset(uri, SCHEMA, file_version="2.3")


@pytest.mark.parametrize("file_version", ["2.0", "2.1"])
def test_types_of_newer_files_are_refused(uri: str, file_version: str) -> None:
    """Files of 2.0 and 2.1 cannot store maps, and creation must say so rather than the first
    append.
    """
    schema = pa.schema([("a", pa.map_(pa.string(), pa.int8()))])
    with pytest.raises(InvalidInputError, match=r"'a'.*maps.*version 2\.2"):
        lance_stream.create_dataset(uri, schema, file_version=file_version)
    plain = pa.schema([("a", pa.int8())])
    dataset = lance_stream.create_dataset(uri, plain, file_version=file_version)
    with pytest.raises(InvalidInputError, match=r"'a'.*maps"):
        dataset.overwrite(pa.table([pa.array([[("k", 1)]], schema.field("a").type)], schema=schema))


def test_missing_tables_are_reported(uri: str) -> None:
    """The error must say that there is no dataset, not which internal file is missing."""
    with pytest.raises(NotFoundError, match="there is no dataset at"):
        lance_stream.open_dataset(uri)


def test_checkout_by_number_and_timestamp(ds: Dataset) -> None:
    """Readers pin a version or a moment, and a moment selects the newest version up to it."""
    assert ids_of(ds.checkout(2)) == [0, 1, 2]
    assert ids_of(lance_stream.open_dataset(ds.uri, version=1)) == []
    second = ds.checkout(2).timestamp
    assert second is not None
    assert ds.checkout(second).version == 2
    assert ds.checkout(second + timedelta(hours=1)).version == 3
    assert ds.checkout(2).checkout(None).version == 3
    assert ids_of(ds.checkout(np.int64(2))) == [0, 1, 2]


@pytest.mark.parametrize("version", [0, -1, True, 2.0, timedelta(1)])
def test_invalid_versions_are_refused(ds: Dataset, version: Any) -> None:
    """`True` is an integer in Python and 2.0 equals 2, but neither is a version."""
    with pytest.raises(InvalidInputError):
        ds.checkout(version)


def test_missing_versions_list_the_existing(ds: Dataset) -> None:
    """Cleanup removes old versions, so the message tells which ones remain."""
    with pytest.raises(NotFoundError, match=r"no version 9.*oldest 1 and the newest 3"):
        ds.checkout(9)
    with pytest.raises(NotFoundError, match="tag 'x' does not exist; the table has no tags"):
        ds.checkout("x")
    with pytest.raises(NotFoundError, match="oldest one is version 1"):
        ds.checkout(datetime(2001, 1, 1, tzinfo=UTC))


def test_versions_list_their_operations(ds: Dataset) -> None:
    """Operators read the history in this list, which must be complete, in order and in UTC."""
    ds = ds.delete("id = 1").update_config({"a": "b"})
    listed = ds.versions()
    assert [file.version for file in listed] == [1, 2, 3, 4, 5]
    assert [file.operation for file in listed] == [
        "Create",
        "Append",
        "Append",
        "Delete",
        "UpdateConfig",
    ]
    assert [file.num_rows for file in listed] == [0, 3, 6, 5, 5]
    stamps = [file.timestamp for file in listed]
    assert all(stamp is not None and stamp.tzinfo is UTC for stamp in stamps)
    assert stamps == sorted(stamps)


# --- appending


def test_appended_rows_get_new_row_ids(ds: Dataset) -> None:
    """Row ids are never reused, and the feed depends on the versions that rows were created in."""
    table = ds.to_table(with_row_id=True, with_row_versions=True)
    assert table["id"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table["_rowid"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table["_row_created_at_version"].to_pylist() == [2, 2, 2, 3, 3, 3]
    assert table["_row_last_updated_at_version"].to_pylist() == [2, 2, 2, 3, 3, 3]


def test_verbs_do_not_change_their_dataset(ds: Dataset) -> None:
    """A dataset is one version: a reader in another thread must not see it move."""
    ds.append(rows(9))
    ds.delete("id < 3")
    assert ds.version == 3
    assert ids_of(ds) == [0, 1, 2, 3, 4, 5]


def test_appends_go_after_the_newest_version(ds: Dataset) -> None:
    """Appending through an older version must not undo what was committed since."""
    assert ids_of(ds.checkout(2).append(rows(6))) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "data",
    [
        rows(6, 7),
        rows(6, 7).to_batches()[0],
        rows(6, 7).to_batches(max_chunksize=1),
        rows(6, 7).to_reader(),
        pd.DataFrame({"name": ["n6", "n7"], "id": [6, 7]}),
        rows(6, 7).select(["name", "id"]),
        pa.table({"id": pa.array([6, 7], pa.int8()), "name": ["n6", "n7"]}),
    ],
    ids=["table", "batch", "batches", "reader", "pandas", "other order", "narrower"],
)
def test_any_tabular_input_can_be_appended(ds: Dataset, data: Any) -> None:
    """Columns are matched by name, narrower types are cast, and the rows must be equal for each
    kind of input.
    """
    assert ds.append(data).to_table() == pa.concat_tables([ds.to_table(), rows(6, 7)])


def test_a_table_can_append_its_scan(ds: Dataset) -> None:
    """The scan is read while the append is written, and must not see the rows of the append."""
    assert ids_of(ds.append(ds.scan(filter="id > 3"))) == [0, 1, 2, 3, 4, 5, 4, 5]


def test_appending_no_rows_makes_no_version(ds: Dataset) -> None:
    """An empty version would wake every follower for nothing."""
    assert ds.append(rows()).version == 3


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (pa.table({"id": [1], "other": [2]}), "no column 'other'"),
        (pa.table({"name": ["x"]}), "'id' must not be null"),
        (pa.table({"id": pa.array([1, None], pa.int64())}), "'id' must not be null"),
        (pa.table({"id": [1.5]}), "column 'id' is double"),
        ("text", "no rows and columns"),
    ],
)
def test_invalid_rows_leave_no_files(tmp_path: Path, data: Any, named: str) -> None:
    """Rows are checked before or while files are written, and no file may survive a refusal."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInputError, match=named):
        ds.append(data)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "data"] == before


def test_input_errors_leave_no_files(tmp_path: Path) -> None:
    """A generator of the user can raise at any batch; its own error must come through."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(1, 2).to_batches()
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        ds.append(batches())
    assert list((tmp_path / "t" / "data").glob("*")) == []
    assert lance_stream.open_dataset(tmp_path / "t").version == 1


def test_concurrent_appends_all_succeed(ds: Dataset) -> None:
    """Appends never conflict, and their row ids must not overlap."""
    errors: list[BaseException] = []

    def append(number: int) -> None:
        try:
            for index in range(3):
                ds.append(rows(100 * number + index))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert errors == []
    now = lance_stream.open_dataset(ds.uri)
    assert now.version == 3 + 12
    table = now.to_table(with_row_id=True)
    assert sorted(table["_rowid"].to_pylist()) == list(range(18))
    assert now.verify() == []


# --- deleting, overwriting, configuring


def test_deletes_keep_other_row_ids(ds: Dataset) -> None:
    """Row ids are positions in a sequence, which must not shift when rows disappear."""
    ds = ds.delete("id % 3 = 1")
    assert ds.version == 4
    assert ds.to_table(with_row_id=True)["_rowid"].to_pylist() == [0, 2, 3, 5]
    ds = ds.delete("name = 'n5'")
    assert ids_of(ds) == [0, 2, 3]
    assert ds.verify() == []


def test_emptied_fragments_leave_the_table(ds: Dataset) -> None:
    """A fragment without live rows would cost every later scan a deletion file and a footer."""
    ds = ds.delete("id IN (0, 2)").delete("id <= 2")
    assert len(ds.table.manifest.fragments) == 1
    assert ids_of(ds) == [3, 4, 5]
    assert ids_of(ds.delete("TRUE")) == []


def test_deleting_nothing_makes_no_version(ds: Dataset) -> None:
    """An empty version would wake every follower for nothing."""
    assert ds.delete("id > 100").version == 3
    assert ds.delete("NULL").version == 3


def test_rows_with_null_conditions_stay(ds: Dataset) -> None:
    """In SQL a condition that is null does not hold."""
    ds = ds.append(pa.table({"id": [6], "name": pa.array([None], pa.string())}))
    assert ids_of(ds.delete("name <> 'n0'")) == [0, 6]


def test_deletes_apply_to_the_newest_version(ds: Dataset) -> None:
    """A delete through an older version must not miss rows that were appended since."""
    ds.append(rows(6))
    assert ids_of(ds.delete("id >= 5")) == [0, 1, 2, 3, 4]


def test_invalid_conditions_delete_nothing(ds: Dataset) -> None:
    """A condition that fails to parse must not count as true."""
    with pytest.raises(InvalidInputError):
        ds.delete("id >")
    with pytest.raises(NotFoundError):
        ds.delete("nope = 1")
    assert lance_stream.open_dataset(ds.uri).version == 3


def test_concurrent_deletes_all_succeed(ds: Dataset) -> None:
    """Deletes of the same and of different rows must all be applied."""
    errors: list[BaseException] = []

    def delete(condition: str) -> None:
        try:
            ds.delete(condition)
        except BaseException as error:
            errors.append(error)

    conditions = ["id = 0", "id = 1", "id <= 1", "id = 4", "id IN (4, 5)"]
    threads = [threading.Thread(target=delete, args=(condition,)) for condition in conditions]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert errors == []
    now = lance_stream.open_dataset(ds.uri)
    assert ids_of(now) == [2, 3]
    assert now.verify() == []


def test_overwriting_replaces_rows_and_columns(ds: Dataset) -> None:
    """Row ids continue after those of the old rows, and configuration and older versions remain."""
    ds = ds.update_config({"a": "b"})
    ds = ds.overwrite(pa.table({"x": [1.5, 2.5]}))
    table = ds.to_table(with_row_id=True)
    assert table["x"].to_pylist() == [1.5, 2.5]
    assert table["_rowid"].to_pylist() == [6, 7]
    assert ds.config == {"a": "b"}
    assert ids_of(ds.checkout(3)) == [0, 1, 2, 3, 4, 5]
    assert ds.verify() == []


def test_overwriting_keeps_ids_of_equal_columns(ds: Dataset) -> None:
    """Followers recognise columns by field id, and an id must never return with another meaning."""
    schema = ds.table.schema
    assert ds.overwrite(rows(7)).table.schema == schema
    other = ds.overwrite(rows(7).rename_columns(["id", "other"])).table.schema
    assert {field.id for field in other.walk()}.isdisjoint(field.id for field in schema.walk())


def test_config_entries_are_set_and_removed(ds: Dataset) -> None:
    """An update merges with the entries that exist, and one without effect makes no version."""
    ds = ds.update_config({"a": "1", "b": "2"}).update_config({"a": None, "c": "3"})
    assert ds.config == {"b": "2", "c": "3"}
    assert ds.version == 5
    assert ds.update_config({"b": "2", "zz": None}).version == 5
    assert ids_of(ds) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InvalidInputError):
        ds.update_config({"a": 1})


# --- reading


def test_columns_keep_the_requested_order(ds: Dataset) -> None:
    """Callers address columns by position, and a text instead of a list must not select its
    letters.
    """
    assert ds.to_table(columns=["name", "id"]).column_names == ["name", "id"]
    with pytest.raises(NotFoundError, match="no column 'nope'"):
        ds.scan(columns=["nope"])
    with pytest.raises(InvalidInputError, match=r"\['id'\]"):
        ds.scan(columns="id")
    with pytest.raises(InvalidInputError, match="at least one column"):
        ds.scan(columns=[])


def test_filters_may_use_unselected_columns(ds: Dataset) -> None:
    """Columns needed by the filter only are read but not returned."""
    assert ds.to_table(columns=["name"], filter="id > 3")["name"].to_pylist() == ["n4", "n5"]
    assert ds.to_table(columns=["id"], filter="_rowid = 2")["id"].to_pylist() == [2]
    assert ds.count_rows("name LIKE 'n%' AND id < 2") == 2
    assert ds.count_rows("TRUE") == 6
    assert ds.count_rows("FALSE") == 0


def test_batches_respect_the_batch_size(ds: Dataset) -> None:
    """Fragments end batches, and a consumer relies on the maximum for its memory."""
    batches = list(ds.scan(batch_size=2))
    assert [batch.num_rows for batch in batches] == [2, 1, 2, 1]
    with pytest.raises(InvalidInputError, match="at least 1"):
        ds.scan(batch_size=0)


def test_scans_may_be_abandoned(ds: Dataset) -> None:
    """Reading ahead happens in other threads, which must end with the reader."""
    reader = ds.scan(batch_size=1)
    reader.read_next_batch()
    del reader
    assert ids_of(ds) == [0, 1, 2, 3, 4, 5]


@pytest.mark.floors
def test_take_keeps_the_requested_order(ds: Dataset) -> None:
    """Rows are fetched sorted for speed, and have to be returned as requested, repetitions
    included.
    """
    ds = ds.delete("id = 1")
    assert ds.take(row_offsets=[4, 0, 1, 4])["id"].to_pylist() == [5, 0, 2, 5]
    assert ds.take(row_ids=pa.array([5, 0, 5]), columns=["name"])["name"].to_pylist() == [
        "n5",
        "n0",
        "n5",
    ]
    assert ds.take(row_offsets=[]).num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"row_offsets": [5]}, NotFoundError),
        ({"row_ids": [1]}, NotFoundError),
        ({"row_ids": [10**9]}, NotFoundError),
        ({"row_offsets": [-1]}, InvalidInputError),
        ({"row_offsets": [0.5]}, InvalidInputError),
        ({"row_offsets": ["x"]}, InvalidInputError),
        ({"row_offsets": [[0]]}, InvalidInputError),
        ({"row_offsets": pa.array([None], pa.int64())}, InvalidInputError),
        ({}, InvalidInputError),
        ({"row_offsets": [0], "row_ids": [0]}, InvalidInputError),
        ({"row_offsets": [0], "columns": []}, InvalidInputError),
    ],
)
def test_taking_missing_rows_is_an_error(
    ds: Dataset, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """Returning fewer rows than requested would shift the caller's results against its keys."""
    with pytest.raises(error):
        ds.delete("id = 1").take(**arguments)


@pytest.mark.floors
def test_row_ids_default_to_addresses(uri: str) -> None:
    """Without stable row ids, Lance defines the row id as the address, of which deleted ones
    must not resolve.
    """
    dataset = lance_stream.create_dataset(uri, SCHEMA, stable_row_ids=False)
    ds = dataset.append(rows(0, 1)).append(rows(2, 3)).delete("id = 2")
    assert not ds.has_stable_row_ids
    table = ds.to_table(with_row_id=True, with_row_address=True)
    assert table["_rowid"].to_pylist() == [0, 1, (1 << 32) + 1]
    assert table["_rowaddr"].to_pylist() == table["_rowid"].to_pylist()
    assert ds.take(row_ids=[(1 << 32) + 1, 0])["id"].to_pylist() == [3, 0]
    with pytest.raises(NotFoundError):
        ds.take(row_ids=[1 << 32])
    assert ds.verify() == []


def test_recreated_tables_are_read_anew(tmp_path: Path) -> None:
    """Caches are keyed by paths, and a new table at the same path has the same version numbers."""
    import shutil

    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, SCHEMA).append(rows(1, 2, 3))
    assert ids_of(lance_stream.open_dataset(uri)) == [1, 2, 3]
    shutil.rmtree(uri)
    lance_stream.create_dataset(uri, SCHEMA).append(rows(9))
    assert ids_of(lance_stream.open_dataset(uri)) == [9]


def test_paths_outside_the_table_are_refused(tmp_path: Path) -> None:
    """A manifest is untrusted input, and could name any file of the reader's disk."""
    from dataclasses import replace

    from lance_stream.table.manifest import FragmentList, encode_manifest
    from lance_stream.table.paths import manifest_path

    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA).append(rows(1))
    secret = tmp_path / "secret.lance"
    secret.write_bytes(next((tmp_path / "t" / "data").iterdir()).read_bytes())
    (fragment,) = ds.table.manifest.fragments
    for path in ("../../secret.lance", str(secret)):
        moved = replace(fragment, files=(replace(fragment.files[0], path=path),))
        manifest = replace(ds.table.manifest, fragments=FragmentList.of([moved]))
        (tmp_path / "t" / manifest_path(2)).write_bytes(encode_manifest(manifest))
        damaged = lance_stream.open_dataset(tmp_path / "t")
        with pytest.raises(CorruptDataError, match="not a path below"):
            damaged.to_table()
        assert {finding.rule for finding in damaged.verify()} >= {"stored paths"}


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_empty_lists_may_have_no_offsets(version: str, kind: Any) -> None:
    """Arrow permits an offsets buffer of no bytes for an empty list, as other libraries produce."""
    inner = kind(pa.int64())
    children = [pa.array([], pa.int64())]
    empty = pa.Array.from_buffers(inner, 0, [None, pa.py_buffer(b"")], children=children)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), empty)
    table = pa.table({"lists": lists})
    uri = f"memory://{uuid.uuid4()}/t"
    ds = lance_stream.create_dataset(uri, table.schema, version).append(table)
    assert ds.to_table()["lists"].to_pylist() == [[], []]
