"""Metadata of the table, its schema and its columns: set, removed, replaced."""

import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.errors import ColumnsChangedError, CommitConflictError
from lance_stream.verbs import configure
from lance_stream.verbs.overwrite import overwrite
from tests.upsert.test_remembered_deletes import on_publication

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("place", pa.struct([pa.field("zip", pa.string())])),
        pa.field("photo", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    ]
)


@pytest.fixture
def ds() -> Dataset:
    """A table with one row, at version 1."""
    rows = pa.table({"id": [1], "place": [{"zip": "10115"}], "photo": [b"x"]}, schema=SCHEMA)
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows, "2.1")


def test_one_call_sets_three_maps(ds: Dataset) -> None:
    """Readers never see a part of a change."""
    after = ds.update_metadata(
        {"owner": "ana"}, schema={"source": "shop"}, fields={"place.zip": {"pii": "true"}}
    )
    assert after.version == ds.version + 1
    assert after.metadata == {"owner": "ana"}
    assert after.schema.metadata == {b"source": b"shop"}
    assert after.schema.field("place").type.field("zip").metadata == {b"pii": b"true"}
    assert ds.checkout(None).metadata == after.metadata


def test_none_removes_and_replace_clears(ds: Dataset) -> None:
    """There is no other way to remove entries."""
    ds = ds.update_metadata({"a": "1", "b": "2", "c": "3"})
    assert ds.update_metadata({"a": None, "d": "4"}).metadata == {"b": "2", "c": "3", "d": "4"}
    assert ds.update_metadata({"e": "5"}, replace=True).metadata == {"e": "5"}


def test_replacing_one_map_keeps_the_others(ds: Dataset) -> None:
    """A map that is not given does not change."""
    ds = ds.update_metadata({"a": "1"}, schema={"b": "2"}, fields={"id": {"c": "3"}})
    ds = ds.update_metadata(schema={}, replace=True)
    assert (ds.metadata, ds.schema.metadata) == ({"a": "1"}, None)
    assert ds.schema.field("id").metadata == {b"c": b"3"}


def test_a_change_of_nothing_commits_nothing(ds: Dataset) -> None:
    """An empty version would wake every follower for nothing."""
    ds = ds.update_metadata({"a": "1"}, fields={"id": {"b": "2"}})
    assert ds.update_metadata({"a": "1", "x": None}, fields={"id": {"b": "2"}}) is not None
    assert ds.checkout(None).version == ds.version


def test_metadata_changes_change_no_row(ds: Dataset) -> None:
    """A follower of the table must not receive rows for a change of metadata."""
    after = ds.update_metadata({"a": "1"}, schema={"b": "2"}, fields={"id": {"c": "3"}})
    assert after.changes(ds.version).read_all().num_rows == 0
    assert after.verify(deep=True) == []
    assert after.append(ds.scan()).count_rows() == 2


def test_a_restore_brings_metadata_back(ds: Dataset) -> None:
    """Metadata is part of a version's content."""
    ds = ds.update_metadata({"a": "1"}, schema={"b": "1"}, fields={"id": {"c": "1"}})
    after = ds.update_metadata({"a": "2"}, schema={"b": "2"}, fields={"id": {"c": "2"}})
    restored = after.restore(ds.version)
    assert restored.metadata == ds.metadata
    assert restored.schema.equals(ds.schema, check_metadata=True)


def test_a_renamed_column_keeps_its_metadata(ds: Dataset) -> None:
    """Metadata belongs to the field id, not to the name."""
    ds = ds.update_metadata(fields={"id": {"unit": "1"}}).rename_columns({"id": "key"})
    assert ds.schema.field("key").metadata == {b"unit": b"1"}


@pytest.mark.parametrize("key", ["lance-encoding:blob", "ARROW:extension:name", "packed"])
def test_storage_settings_of_columns_cannot_change(ds: Dataset, key: str) -> None:
    """The reference accepts the change and then cannot read the column any more."""
    with pytest.raises(InvalidInputError, match="cannot change"):
        ds.update_metadata(fields={"place": {key: "true"}})
    with pytest.raises(InvalidInputError, match="lance-encoding:blob"):
        ds.update_metadata(fields={"photo": {}}, replace=True)
    assert ds.checkout(None).version == ds.version


def test_unknown_column_encodings_are_refused(ds: Dataset) -> None:
    """The next append would fail."""
    with pytest.raises(InvalidInputError, match="lance-encoding:compression"):
        ds.update_metadata(fields={"place.zip": {"lance-encoding:compression": "gzip"}})
    after = ds.update_metadata(fields={"place.zip": {"lance-encoding:compression": "zstd"}})
    assert after.append(ds.scan()).to_table(["id", "place"]).num_rows == 2


def test_primary_keys_are_declared_once(ds: Dataset) -> None:
    """Readers rely on a key: its columns are never null, and it cannot change."""
    key = "lance-schema:unenforced-primary-key"
    with pytest.raises(InvalidInputError, match="may be null"):
        ds.update_metadata(fields={"place.zip": {key: "true"}})
    after = ds.update_metadata(fields={"id": {key: "true"}})
    with pytest.raises(InvalidInputError, match="primary key"):
        after.update_metadata(fields={"id": {key: None}})


def test_columns_are_named_by_path(ds: Dataset) -> None:
    """A misspelt path must be an error, not an entry for a column that does not exist."""
    with pytest.raises(NotFoundError, match="'town' in 'place'"):
        ds.update_metadata(fields={"place.town": {"a": "1"}})
    with pytest.raises(InvalidInputError, match="twice"):
        ds.update_metadata(fields={"place.zip": {"a": "1"}, "`place`.zip": {"a": "2"}})


@pytest.mark.parametrize("entries", [None, "owner=ana", {"": "1"}, {"a": 1}, {1: "a"}])
def test_metadata_values_must_be_text(ds: Dataset, entries: object) -> None:
    """The format stores nothing else."""
    with pytest.raises(InvalidInputError, match="metadata"):
        ds.update_metadata(entries)  # type: ignore[arg-type]  # as users may pass


def test_concurrent_changes_of_different_entries_combine(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only changes of the same entry, or of the same map of a schema or column, conflict."""
    race(ds, monkeypatch, lambda: ds.update_metadata({"b": "2"}, fields={"id": {"x": "1"}}))
    after = ds.update_metadata({"a": "1"}, fields={"place": {"x": "1"}})
    assert after.metadata == {"a": "1", "b": "2"}
    assert after.schema.field("id").metadata == {b"x": b"1"}


def test_concurrent_changes_of_one_entry_conflict(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later writer may not have wanted to undo the first one's change."""
    race(ds, monkeypatch, lambda: ds.update_metadata({"a": "2"}))
    with pytest.raises(CommitConflictError):
        ds.update_metadata({"a": "1"})


def race(ds: Dataset, monkeypatch: pytest.MonkeyPatch, other: Callable[[], Dataset]) -> None:
    """Let another writer commit between the plan and the commit of the next update."""
    commit = configure.commit_planned

    def late(*args: object, **named: object) -> object:
        monkeypatch.setattr(configure, "commit_planned", commit)
        other()
        return commit(*args, **named)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(configure, "commit_planned", late)


@pytest.mark.parametrize(
    "declare",
    [
        lambda ds: ds.update_metadata(schema={"source": "shop"}),
        lambda ds: ds.update_metadata(fields={"photo": {"pii": "true"}}),
        lambda ds: ds.alter_columns({"path": "place", "nullable": False}),
    ],
    ids=["schema", "column", "not null"],
)
def test_overwrites_lose_no_concurrent_declaration(
    ds: Dataset, declare: Callable[[Dataset], Dataset]
) -> None:
    """The rows were written for other declarations; a column without nulls may have got some."""
    before = ds.table.store.list("data")
    rows = ds.to_table()
    with pytest.raises(ColumnsChangedError, match="write them again"):
        overwrite(on_publication(ds.table, lambda: declare(ds)), rows)
    newest = ds.checkout(None)
    assert newest.version == ds.version + 1
    assert ds.table.store.list("data") == before
    assert newest.overwrite(rows).schema == newest.schema


def test_overwrites_replace_concurrently_added_columns(ds: Dataset) -> None:
    """An overwrite discards the existing columns, so it has no conflict with a new one."""
    added = pa.field("note", pa.string())
    stale = on_publication(ds.table, lambda: ds.add_columns(added))
    assert Dataset(overwrite(stale, ds.to_table()).table).schema == ds.schema
