"""Whole tables: pylance reads what we write, and we read what pylance makes of it, and of its own.

Rows, row ids and row versions have to be the same; `verify` finds nothing; and the change feed
agrees with pylance's delta, asked version by version at the end version.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_stream
from lance_stream import Dataset

pytestmark = pytest.mark.oracle

FILE_VERSIONS = ["2.0", "2.1", "2.2"]
STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.int32())),
        pa.field("part", pa.struct([("a", pa.int32()), ("b", pa.large_string())])),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


def make_rows(*ids: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": id_,
                "x": None if id_ % 5 == 0 else id_ / 7,
                "name": None if id_ % 4 == 0 else f"name {id_}",
                "tags": None if id_ % 6 == 0 else list(range(id_ % 3)),
                "part": {"a": id_, "b": f"b{id_}"},
                "vector": None if id_ % 7 == 0 else [id_, 0.5, -id_, 1.0],
                "kind": ["red", "green", "blue"][id_ % 3],
                "at": timedelta(days=id_).total_seconds() * 1_000_000,
            }
            for id_ in ids
        ],
        schema=schema,
    )


def agree(uri: str) -> Dataset:
    """Check that both programs see the same in every version, and return the newest."""
    theirs = lance.dataset(uri)
    for version in [version["version"] for version in theirs.versions()]:
        old = lance.dataset(uri, version=version)
        expected = old.to_table(columns=[*old.schema.names, *STAMPS, "_rowaddr"])
        ds = lance_stream.open_dataset(uri, version=version)
        actual = ds.to_table(with_row_id=True, with_row_address=True, with_row_versions=True)
        assert actual.select(expected.column_names).to_pylist() == expected.to_pylist()
        assert ds.schema.equals(old.schema, check_metadata=True)
        assert ds.count_rows() == old.count_rows()
        assert [str(finding) for finding in ds.verify()] == []
    theirs.validate()
    ours = lance_stream.open_dataset(uri)
    assert ours.version == theirs.version
    return ours


def changes_agree(uri: str) -> None:
    """Check each version's changes against pylance's delta, asked at that version."""
    newest = lance_stream.open_dataset(uri)
    for version in range(2, newest.version + 1):
        delta = lance.dataset(uri, version=version).delta(
            begin_version=version - 1, end_version=version
        )
        changes = newest.changes(version - 1, version).read_all()
        kinds = changes["_change_type"]

        def rows(kind: str, changes: pa.Table = changes, kinds: Any = kinds) -> list[dict]:
            chosen = changes.filter(pc.equal(kinds, kind))
            return by_id(chosen.drop_columns(["_change_type", *_COMMIT]).to_pylist())

        inserted = delta.get_inserted_rows().read_all()
        updated = delta.get_updated_rows().read_all()
        deleted = delta.get_deleted_row_ids().read_all()["_rowid"].to_pylist()
        assert rows("insert") == by_id(inserted.to_pylist())
        assert rows("update_postimage") == by_id(updated.to_pylist())
        assert [row["_rowid"] for row in rows("delete")] == sorted(deleted)
        assert len(rows("update_preimage")) == len(rows("update_postimage"))


_COMMIT = ["_commit_version", "_commit_timestamp"]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["_rowid"])


def ours_of_every_kind(uri: str, file_version: str) -> Dataset:
    """A table that we made, appended to, deleted from and configured."""
    ds = lance_stream.create_dataset(uri, SCHEMA, file_version=file_version, config={"a": "b"})
    ds = ds.append(make_rows(*range(40))).append(make_rows(*range(40, 60)))
    return ds.delete("id % 9 = 4").update_config({"a": "c"})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.mark.parametrize("file_version", FILE_VERSIONS)
def test_pylance_reads_our_whole_history(uri: str, file_version: str) -> None:
    """Every operation leaves a version that pylance must read alike."""
    ours_of_every_kind(uri, file_version)
    agree(uri)
    changes_agree(uri)
    theirs = lance.dataset(uri)
    assert theirs.data_storage_version == file_version
    assert theirs.config() == {"a": "c"}
    assert theirs.has_stable_row_ids
    assert theirs.to_table(filter="name LIKE 'name 1%' AND x > 2").num_rows == (
        lance_stream.open_dataset(uri).count_rows("name LIKE 'name 1%' AND x > 2")
    )


def upsert(theirs: Any) -> None:
    merge = theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(make_rows(3, 41, 100, 101))


ON_TOP: dict[str, Callable[[Any], Any]] = {
    "append": lambda ds: lance.write_dataset(make_rows(200, 201), ds.uri, mode="append"),
    "upsert": upsert,
    "update": lambda ds: ds.update({"x": "x + 1"}, where="id > 30"),
    "delete": lambda ds: ds.delete("id IN (5, 50)"),
    "delete whole fragments": lambda ds: ds.delete("id < 40"),
    "delete all": lambda ds: ds.delete("true"),
    "overwrite": lambda ds: lance.write_dataset(make_rows(7, 8), ds.uri, mode="overwrite"),
    "compact": lambda ds: ds.optimize.compact_files(),
    "create index": lambda ds: ds.create_scalar_index("id", "BTREE"),
    "add null column": lambda ds: ds.add_columns(pa.schema([("n", pa.int32())])),
    "add computed column": lambda ds: ds.add_columns({"y": "id * 2"}),
    "drop column": lambda ds: ds.drop_columns(["x"]),
    "drop part of struct": lambda ds: ds.drop_columns(["part.a"]),
    "rename column": lambda ds: ds.alter_columns({"path": "name", "name": "title"}),
    "config": lambda ds: ds.update_config({"k": "v"}),
}


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("operation", list(ON_TOP))
@pytest.mark.parametrize("file_version", [pytest.param("2.0", marks=pytest.mark.slow), "2.2"])
def test_changes_by_pylance_are_followed(uri: str, file_version: str, operation: str) -> None:
    """Manifests of pylance's operations differ from ours, and we read, follow and extend them."""
    before = ours_of_every_kind(uri, file_version)
    ON_TOP[operation](lance.dataset(uri))
    newest = agree(uri)
    assert newest.version > before.version
    changes_agree(uri)
    # and we go on
    if newest.schema.equals(SCHEMA):
        newest.append(make_rows(300)).delete("id = 300 OR id = 6")
        agree(uri)


def test_columns_added_by_pylance_read_null(uri: str) -> None:
    """Older versions do not have the column, and the feed must not read later values."""
    ds = ours_of_every_kind(uri, "2.2")
    lance.dataset(uri).add_columns(pa.schema([("n", pa.int32())]))
    lance.dataset(uri).add_columns({"y": "id * 2"})
    newest = lance_stream.open_dataset(uri)
    assert newest.to_table(columns=["n"])["n"].null_count == newest.count_rows()
    changes = newest.changes(0, columns=["id", "n", "y"]).read_all()
    inserts = changes.filter(pc.equal(changes["_commit_version"], 2))
    assert inserts["y"].null_count == inserts.num_rows
    last = changes.filter(pc.equal(changes["_commit_version"], newest.version))
    posts = last.filter(pc.equal(last["_change_type"], "update_postimage"))
    assert posts["y"].to_pylist() == [2 * id_ for id_ in posts["id"].to_pylist()]
    assert posts.num_rows == ds.count_rows()


def test_renamed_columns_are_matched_by_id(uri: str) -> None:
    """Rows from before the rename keep their values under the new name."""
    ours_of_every_kind(uri, "2.2")
    lance.dataset(uri).alter_columns({"path": "name", "name": "title"})
    changes = lance_stream.open_dataset(uri).changes(1, 2).read_all()
    assert "name" in changes.column_names, "an interval has the columns of its last version"
    newest = lance_stream.open_dataset(uri)
    changes = newest.changes(1, columns=["id", "title"]).read_all()
    expected = [None if id_ % 4 == 0 else f"name {id_}" for id_ in changes["id"].to_pylist()]
    assert changes["title"].to_pylist() == expected


def pylance_table(uri: str, file_version: str, *, stable: bool = True) -> Any:
    return lance.write_dataset(
        make_rows(*range(30)),
        uri,
        data_storage_version=file_version,
        enable_stable_row_ids=stable,
        max_rows_per_file=12,
    )


@pytest.mark.parametrize("file_version", FILE_VERSIONS)
def test_long_pylance_histories_read_alike(uri: str, file_version: str) -> None:
    """Moves, compactions and a restore together decide which row is live."""
    theirs = pylance_table(uri, file_version)
    theirs.delete("id % 8 = 2")
    upsert(lance.dataset(uri))
    lance.dataset(uri).update({"name": "'new'"}, where="id < 4")
    lance.write_dataset(make_rows(60, 61), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri, version=2).restore()
    lance.write_dataset(make_rows(70), uri, mode="append")
    agree(uri)


def test_restores_delete_insert_and_update(uri: str) -> None:
    """Pylance's own delta does not contain what a restore reverts."""
    pylance_table(uri, "2.2")
    lance.dataset(uri).delete("id = 3")
    lance.dataset(uri).update({"x": "0.5"}, where="id = 6")
    lance.write_dataset(make_rows(90), uri, mode="append")
    lance.dataset(uri, version=1).restore()
    changes = lance_stream.open_dataset(uri).changes(4).read_all().to_pylist()
    events = [(row["_change_type"], row["id"], row["x"]) for row in changes]
    assert events == [
        ("delete", 90, None),
        ("update_preimage", 6, 0.5),
        ("update_postimage", 6, 6 / 7),
        ("insert", 3, 3 / 7),
    ]


def test_tables_without_stable_ids_agree(uri: str) -> None:
    """pylance creates tables without them by default."""
    pylance_table(uri, "2.1", stable=False)
    lance.dataset(uri).delete("id = 13")
    ds = agree(uri)
    assert not ds.has_stable_row_ids
    ds.append(make_rows(80)).delete("id = 1")
    agree(uri)


def test_cleaned_up_tables_are_sound(uri: str) -> None:
    """Versions before the cleanup are missing, and nothing may need them."""
    pylance_table(uri, "2.2")
    for number in range(5):
        lance.write_dataset(make_rows(100 + number), uri, mode="append")
    lance.dataset(uri).delete("id = 3")
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))
    ds = agree(uri)
    assert [version.version for version in ds.versions()] == [7]
    ds.append(make_rows(200))
    agree(uri)


def test_tables_with_v1_names_keep_them(uri: str) -> None:
    """A table that mixes both naming schemes has no newest version."""
    lance.write_dataset(
        make_rows(1, 2), uri, enable_v2_manifest_paths=False, enable_stable_row_ids=True
    )
    lance_stream.open_dataset(uri).append(make_rows(3)).delete("id = 1")
    names = sorted(path.name for path in (Path(uri) / "_versions").glob("*.manifest"))
    assert names == ["1.manifest", "2.manifest", "3.manifest"]
    agree(uri)
    changes_agree(uri)


def test_indexed_tables_accept_appends_and_deletes(uri: str) -> None:
    """Queries by index must see new rows and no deleted ones."""
    pylance_table(uri, "2.2").create_scalar_index("id", "BTREE")
    ds = lance_stream.open_dataset(uri).append(make_rows(100, 101))
    ds.delete("id IN (2, 100)")
    agree(uri)
    theirs = lance.dataset(uri)
    assert [describe_index.name for describe_index in theirs.describe_indices()] == ["id_idx"]
    for key, num_rows in {2: 0, 3: 1, 100: 0, 101: 1}.items():
        assert theirs.to_table(filter=f"id = {key}").num_rows == num_rows


def test_a_pylance_tag_is_opened(uri: str) -> None:
    """Tags are shared names for versions, whoever created them."""
    theirs = pylance_table(uri, "2.2")
    lance.write_dataset(make_rows(100), uri, mode="append")
    theirs.tags.create("first", 1)
    assert lance_stream.open_dataset(uri, version="first").version == 1
    with pytest.raises(lance_stream.NotFoundError, match="existing tags: first"):
        lance_stream.open_dataset(uri, version="second")


@pytest.mark.parametrize("file_version", FILE_VERSIONS)
def test_take_returns_what_pylance_takes(uri: str, file_version: str) -> None:
    """Row offsets must skip deleted rows in the same way."""
    pylance_table(uri, file_version).delete("id % 8 = 2")
    theirs, ours = lance.dataset(uri), lance_stream.open_dataset(uri)
    offsets = np.random.default_rng(5).integers(0, ours.count_rows(), 20).tolist()
    assert ours.take(row_offsets=offsets).to_pylist() == theirs.take(offsets).to_pylist()


@pytest.mark.parametrize("file_version", FILE_VERSIONS)
def test_many_deleted_rows_become_a_bitmap(uri: str, file_version: str) -> None:
    """The form of deletion files changes with their size, in both programs."""
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(uri, schema, file_version=file_version)
    ds = ds.append(pa.table({"id": range(20_000)})).delete("id % 4 = 1")
    assert [path.suffix for path in (Path(uri) / "_deletions").iterdir()] == [".bin"]
    agree(uri)
    lance.dataset(uri).delete("id % 4 = 2")
    ds = agree(uri)
    assert ds.delete("id < 100").count_rows() == 10_000 - 50
    agree(uri)
    changes_agree(uri)


def test_stale_writers_rebase_on_each_other(uri: str) -> None:
    """Deletes of different rows from old handles must all hold."""
    ours_of_every_kind(uri, "2.2")
    ours, theirs = lance_stream.open_dataset(uri), lance.dataset(uri)
    ours.append(make_rows(100))
    theirs.delete("id = 1")
    ours.delete("id = 2")
    theirs.delete("id = 3")
    assert sorted(agree(uri).to_table(columns=["id"])["id"].to_pylist())[:3] == [0, 5, 6]


def test_both_read_each_others_transaction_properties(uri: str) -> None:
    """Batches of a stream are recognised by the properties of their transaction."""
    from lance_stream.ledger.replay_check import PendingBatch
    from lance_stream.verbs.append import append

    ds = lance_stream.create_dataset(uri, SCHEMA)
    append(ds.table, make_rows(1), PendingBatch.of("my app", 7, "query"))
    lance.write_dataset(make_rows(2), uri, mode="append", transaction_properties={"their": "note"})
    noted = {
        "lance_stream.app_id": "my app",
        "lance_stream.batch_id": "7",
        "lance_stream.query_id": "query",
    }
    transactions = lance.dataset(uri).get_transactions(2)
    assert [dict(transaction.transaction_properties) for transaction in transactions] == [
        {"their": "note"},
        noted,
    ]
    listed = lance_stream.open_dataset(uri).versions()
    assert [dict(file.properties) for file in listed] == [{}, noted, {"their": "note"}]
