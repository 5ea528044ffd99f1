"""Manifests of other programs that ask for care: features that we may not write, row ids that would
be given twice, what stands beside the table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.dataset import Dataset
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from lance_stream.table.messages import wire
from tests.dataset.manifest_edits import add_bytes_to_manifest, edit_manifest

ROWS = {"id": [1, 2, 3], "x": [1.0, 2.0, 3.0]}


def make(path: Path, **options: Any) -> Dataset:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    ds = lance_stream.create_dataset(path, schema, **options)
    return ds.append(pa.table(ROWS)).append(pa.table({"id": [4], "x": [4.0]}))


def files_of(path: Path) -> set[str]:
    """Return the table's files except transactions, which a commit writes before its checks."""
    return {
        str(value.relative_to(path))
        for value in path.rglob("*")
        if value.is_file() and "_transactions" not in value.parts
    }


def by_another_program(change: Callable[[table_pb2.Manifest], object]) -> Any:
    def edit(manifest: table_pb2.Manifest) -> None:
        manifest.writer_version.library = "lance"
        change(manifest)

    return edit


WRITES = {
    "append": lambda ds: ds.append(pa.table(ROWS)),
    "append of a reader": lambda ds: ds.append(ds.scan()),
    "overwrite": lambda ds: ds.overwrite(pa.table(ROWS)),
    "upsert": lambda ds: ds.upsert(pa.table({"id": [1, 9], "x": [0.0, 0.0]}), on="id"),
    "update": lambda ds: ds.update({"x": "x + 1"}),
    "delete": lambda ds: ds.delete("id = 1"),
    "add_columns": lambda ds: ds.add_columns({"y": "x + 1"}),
    "add_nulls": lambda ds: ds.add_columns(pa.field("y", pa.int64())),
    "compact": lambda ds: ds.compact(),
    "drop_columns": lambda ds: ds.drop_columns(["x"]),
    "update_config": lambda ds: ds.update_config({"a": "b"}),
    "restore": lambda ds: ds.restore(1),
}


@pytest.mark.parametrize("verb", WRITES)
def test_unwritable_features_are_noticed_before_writing(verb: str, tmp_path: Path) -> None:
    """An unknown flag may forbid the operation, so every verb must fail before its first file."""
    ds = make(tmp_path / "t")
    edit_manifest(
        tmp_path / "t", lambda manifest: setattr(manifest, "writer_feature_flags", 1 << 40 | 2)
    )
    ds = lance_stream.open_dataset(tmp_path / "t")
    before = files_of(tmp_path / "t")
    with pytest.raises(UnsupportedFeatureError, match="cannot be written"):
        WRITES[verb](ds)
    assert files_of(tmp_path / "t") == before
    assert ds.checkout(None).version == 3


@pytest.mark.parametrize("verb", ["append", "append of a reader", "upsert", "update", "overwrite"])
def test_row_ids_are_not_reused(verb: str, tmp_path: Path) -> None:
    """A counter that another program set too low would assign one id to two rows."""
    make(tmp_path / "t").upsert(pa.table({"id": [2], "x": [0.5]}), on="id")
    change = by_another_program(lambda manifest: setattr(manifest, "next_row_id", 3))
    edit_manifest(tmp_path / "t", change)
    ds = lance_stream.open_dataset(tmp_path / "t")
    before = files_of(tmp_path / "t")
    with pytest.raises(CorruptDataError, match="the next row id 3, but a row has the id 3"):
        WRITES[verb](ds)
    assert files_of(tmp_path / "t") == before
    assert "row ids" in {finding.rule for finding in ds.verify()}


@pytest.mark.parametrize("verb", ["append", "upsert", "update", "add_columns", "compact"])
def test_fragment_ids_are_not_reused(verb: str, tmp_path: Path) -> None:
    """A wrong maximum must not make a new fragment take the deletion files of an old one."""
    make(tmp_path / "t").append(pa.table({"id": [5], "x": [5.0]}))
    edit_manifest(tmp_path / "t", lambda manifest: setattr(manifest, "max_fragment_id", 0))
    ds = lance_stream.open_dataset(tmp_path / "t")
    assert {finding.rule for finding in ds.verify()} == {"fragment ids"}
    result = WRITES[verb](ds)
    assert result.verify() == []
    assert set(result.to_table(columns=["id"])["id"].to_pylist()) >= {1, 2, 3, 4, 5}


def test_compaction_ignores_tables_without_columns(tmp_path: Path) -> None:
    """Such a table has nothing to write, and maintenance must not fail."""
    make(tmp_path / "t")
    edit_manifest(tmp_path / "t", lambda manifest: manifest.ClearField("fields"))
    ds = lance_stream.open_dataset(tmp_path / "t")
    assert ds.compact().version == ds.version


def test_ambiguous_column_names_are_refused(tmp_path: Path) -> None:
    """Lance permits no duplicates, but other writers do; choosing one silently could delete the
    wrong rows.
    """
    make(tmp_path / "t")
    edit_manifest(tmp_path / "t", lambda manifest: setattr(manifest.fields[1], "name", "id"))
    ds = lance_stream.open_dataset(tmp_path / "t")
    for ask in (
        lambda: ds.delete("id = 1"),
        lambda: ds.count_rows("id = 1"),
        lambda: ds.upsert(pa.table({"id": [1]}), on="id"),
    ):
        with pytest.raises(InvalidInputError, match="two columns with the name 'id'"):
            ask()
    assert ds.rename_columns({"id": "key"}).delete("id = 4 AND key = 4").count_rows() == 3


def test_foreign_row_ids_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads all row ids of a foreign version, which our own versions must not repeat."""
    from lance_stream.table.apply import next_row_id_check

    requests: list[int] = []
    real = next_row_id_check.largest_row_id

    def counted(fragments: Any) -> int:
        requests.append(len(fragments))
        return real(fragments)

    monkeypatch.setattr(next_row_id_check, "largest_row_id", counted)
    ds = make(tmp_path / "t")
    assert not requests  # all versions are ours
    edit_manifest(tmp_path / "t", by_another_program(lambda _: None))
    ds = lance_stream.open_dataset(tmp_path / "t").append(pa.table(ROWS)).append(pa.table(ROWS))
    assert requests == [2]
    assert ds.verify() == []


@pytest.mark.parametrize("column", ["_row_created_at_version", "_row_last_updated_at_version"])
def test_lineage_filters_need_stable_row_ids(column: str, tmp_path: Path) -> None:
    """Without stable ids these columns have no values, and a filter would silently match
    nothing.
    """
    ds = make(tmp_path / "t", stable_row_ids=False)
    for ask in (
        lambda: ds.to_table(filter=f"{column} > 2"),
        lambda: ds.to_table(filter=f"id = 1 OR {column} IS NULL"),
        lambda: ds.count_rows(f"{column} > 2"),
        lambda: ds.delete(f"{column} > 2"),
        lambda: ds.update({"x": "0"}, where=f"{column} > 2"),
    ):
        with pytest.raises(InvalidInputError, match="has no stable row ids"):
            ask()
    assert ds.count_rows("_rowid > 0") == 3  # a row id is an address there
    assert make(tmp_path / "stable").count_rows(f"{column} > 2") == 1


@pytest.mark.parametrize(
    "stated",
    [wire.encode_varint(17 << 3) + b"\x01", wire.frame(22, b"\x08\x01")],
    ids=["a blob dataset", "a fragment tree"],
)
def test_misreadable_fields_are_refused_everywhere(stated: bytes, tmp_path: Path) -> None:
    """Every way to open a manifest must refuse what it would misread."""
    make(tmp_path / "t")
    add_bytes_to_manifest(tmp_path / "t", stated)
    ds = lance_stream.open_dataset(tmp_path / "t", 2)
    for opening in (
        lambda: lance_stream.open_dataset(tmp_path / "t"),
        lambda: lance_stream.open_dataset(tmp_path / "t", 3),
        lambda: ds.checkout(3),
        lambda: ds.append(pa.table(ROWS)),
        lambda: ds.changes(0, 3).read_all(),
    ):
        with pytest.raises(UnsupportedFeatureError, match="of its manifest has"):
            opening()
    assert ds.count_rows() == 3
    assert [version.version for version in ds.versions()] == [1, 2, 3]


def test_future_fields_are_ignored_and_dropped(tmp_path: Path) -> None:
    """Protobuf fields that a later Lance adds must not stop reading, and we cannot vouch for
    them in our versions.
    """
    make(tmp_path / "t")
    add_bytes_to_manifest(tmp_path / "t", wire.encode_varint(99 << 3) + b"\x07")
    ds = lance_stream.open_dataset(tmp_path / "t")
    assert ds.count_rows() == 4
    assert ds.table.manifest.unknown
    assert not ds.append(pa.table(ROWS)).table.manifest.unknown


def rows_of_no_file(manifest: table_pb2.Manifest) -> None:
    del manifest.fragments[0].files[:]


def more_rows_than_the_file(manifest: table_pb2.Manifest) -> None:
    manifest.fragments[0].physical_rows = 4


def fewer_rows_than_the_file(manifest: table_pb2.Manifest) -> None:
    manifest.fragments[0].physical_rows = 2


def one_column_twice(manifest: table_pb2.Manifest) -> None:
    manifest.fragments[0].files[0].column_indices[:] = [0, 0]


def one_field_twice_in_a_file(manifest: table_pb2.Manifest) -> None:
    manifest.fragments[0].files[0].fields[:] = [1, 1]


def an_overlay_without_its_flag(manifest: table_pb2.Manifest) -> None:
    manifest.fragments[0].overlays.add(committed_version=2)


@pytest.mark.parametrize(
    "change",
    [
        rows_of_no_file,
        more_rows_than_the_file,
        fewer_rows_than_the_file,
        one_column_twice,
        one_field_twice_in_a_file,
        an_overlay_without_its_flag,
    ],
)
def test_misreadable_fragments_are_refused(
    change: Callable[[table_pb2.Manifest], object], tmp_path: Path
) -> None:
    """Contradictory manifests could be read as shifted or missing rows."""
    make(tmp_path / "t", stable_row_ids=False)
    edit_manifest(tmp_path / "t", change)
    ds = lance_stream.open_dataset(tmp_path / "t")
    for read in (lambda: ds.to_table(), lambda: ds.to_table(["x"], "id > 0"), lambda: ds.take([0])):
        with pytest.raises(BadDataError):
            read()
