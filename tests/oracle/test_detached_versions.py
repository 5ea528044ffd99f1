"""Detached versions, which pylance makes on request: they are read and tagged, and nothing else."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError

pytestmark = pytest.mark.oracle

BLOB = {"lance-encoding:blob": "true"}
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), pa.field("photo", pa.large_binary(), metadata=BLOB)]
)
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "photo": [b"one", None, b""]}, SCHEMA)
MORE = pa.table({"id": [4], "name": ["d"], "photo": [b"four"]}, SCHEMA)


class DetachedTable:
    """A table of three rows, and a detached version with one more."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        lance.write_dataset(ROWS, self.uri, enable_stable_row_ids=True)
        self.version = self.append_detached(MORE, 1).version

    def append_detached(self, rows: pa.Table, version: int) -> Any:
        """Return a detached version with more rows than another version."""
        operation = lance.LanceOperation.Append(write_fragments(rows, self.uri))
        return lance.LanceDataset.commit(
            lance.dataset(self.uri, version=version),
            operation,
            read_version=version,
            detached=True,
        )

    @property
    def main(self) -> Dataset:
        return lance_stream.open_dataset(self.uri)

    @property
    def detached(self) -> Dataset:
        return lance_stream.open_dataset(self.uri, self.version)

    def files(self) -> set[Path]:
        """Return the files of the table, and of a clone beside it."""
        return {path for path in Path(self.uri).parent.rglob("*") if path.is_file()}


def ids(ds: Dataset) -> list[int]:
    return sorted(ds.to_table().column("id").to_pylist())


READS: dict[str, Callable[[Dataset], Any]] = {
    "__arrow_c_stream__": lambda ds: pa.table(ds).num_rows == 4,
    "_repr_html_": lambda ds: str(ds.version) in ds._repr_html_(),
    "branch": lambda ds: ds.branch is None,
    "branches": lambda ds: ds.branches.list() == {},
    "checkout": lambda ds: ds.checkout(None).version == 1,
    "config": lambda ds: ds.config == {},
    "count_rows": lambda ds: ds.count_rows("id > 2") == 2,
    "digest": lambda ds: ds.digest().num_rows == 4,
    "file_version": lambda ds: ds.file_version == ds.checkout(1).file_version,
    "has_stable_row_ids": lambda ds: ds.has_stable_row_ids,
    "index_coverage": lambda ds: ds.index_coverage() == [],
    "ledger": lambda ds: ds.ledger() == {},
    "metadata": lambda ds: ds.metadata == {},
    "report": lambda ds: bool(ds.report()._repr_html_()),
    "scan": lambda ds: ds.scan(["id"], "id = 4", with_row_id=True).read_all().num_rows == 1,
    "schema": lambda ds: ds.schema == ROWS.schema,
    "tags": lambda ds: ds.tags.list() == {},
    "take": lambda ds: ds.take([3]).to_pylist() == MORE.to_pylist(),
    "take_blobs": lambda ds: ds.take_blobs("photo", [3])[0].read() == b"four",
    "timestamp": lambda ds: ds.timestamp is not None,
    "to_table": lambda ds: ids(ds) == [1, 2, 3, 4],
    "uri": lambda ds: bool(ds.uri),
    "verify": lambda ds: ds.verify(deep=True) == [],
    "version": lambda ds: ds.version > 1 << 63,
    "versions": lambda ds: [version.version for version in ds.versions()] == [1],
}

REFUSED: dict[str, Callable[[Dataset], Any]] = {
    "add_columns": lambda ds: ds.add_columns(pa.field("n", pa.int64())),
    "add_columns, computed": lambda ds: ds.add_columns({"n": "id + 1"}),
    "alter_columns": lambda ds: ds.alter_columns({"path": "id", "nullable": False}),
    "append": lambda ds: ds.append(MORE),
    "append, read once": lambda ds: ds.append(MORE.to_reader()),
    "apply_changes": lambda ds: ds.apply_changes(
        MORE.append_column("_change_type", [["insert"]]), "id"
    ),
    "apply_scd1": lambda ds: ds.apply_scd1(MORE, keys="id", sequence_by="id"),
    "apply_scd2": lambda ds: ds.apply_scd2(MORE, keys="id", sequence_by="id"),
    "branches": lambda ds: ds.branches.create("dev"),
    "changes": lambda ds: ds.changes(0),
    "cleanup": lambda ds: ds.cleanup(timedelta(0)),
    "compact": lambda ds: ds.compact(),
    "delete": lambda ds: ds.delete("id = 1"),
    "drop_columns": lambda ds: ds.drop_columns(["name"]),
    "follow": lambda ds: ds.follow(wait=False),
    "optimize_indices": lambda ds: ds.optimize_indices(),
    "overwrite": lambda ds: ds.overwrite(MORE),
    "rename_columns": lambda ds: ds.rename_columns({"name": "title"}),
    "restore": lambda ds: ds.restore(1),
    "shallow_clone": lambda ds: ds.shallow_clone(ds.uri + "-clone"),
    "update": lambda ds: ds.update({"id": "id + 1"}),
    "update_config": lambda ds: ds.update_config({"key": "value"}),
    "update_metadata": lambda ds: ds.update_metadata({"key": "value"}),
    "upsert": lambda ds: ds.upsert(MORE, "id"),
}


def test_every_dataset_member_is_tried() -> None:
    """A new verb has to say whether it works on a detached version."""
    tried = {name.partition(",")[0] for name in (*READS, *REFUSED)}
    members = {name for name in vars(Dataset) if not name.startswith("_")}
    assert members == {name for name in tried if not name.startswith("_")}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DetachedTable:
    return DetachedTable(tmp_path_factory.mktemp("detached") / "t")


@pytest.mark.parametrize("member", READS)
def test_detached_versions_are_read(table: DetachedTable, member: str) -> None:
    """Programs stage rows in them, to be checked before they are published."""
    assert READS[member](table.detached)


@pytest.mark.parametrize("member", REFUSED)
def test_nothing_is_written_to_detached_versions(table: DetachedTable, member: str) -> None:
    """A write would go to the newest version, which has other rows than the handle."""
    files = table.files()
    with pytest.raises(InvalidInputError, match=r"is detached.*Use the newest version"):
        REFUSED[member](table.detached)
    assert table.files() == files


@pytest.mark.parametrize(
    "use",
    [
        lambda table: table.main.restore(table.version),
        lambda table: table.main.branches.create("dev", table.version),
        lambda table: table.main.shallow_clone(table.uri + "-clone", table.version),
        lambda table: table.main.changes(0, table.version),
        lambda table: table.main.changes(table.version),
    ],
)
def test_detached_versions_enter_no_history(
    table: DetachedTable, use: Callable[[DetachedTable], Any]
) -> None:
    """Their row ids may be those of other rows that were committed meanwhile."""
    with pytest.raises(InvalidInputError, match="is detached"):
        use(table)
    assert table.main.version == 1


def test_versions_detached_from_detached_ones_verify(tmp_path: Path) -> None:
    """The numbers are random, so a row version may exceed the table version."""
    table = DetachedTable(tmp_path / "t")
    for _ in range(4):
        ds = table.append_detached(MORE, table.version)
        fragment = ds.get_fragments()[0].delete("id = 2")
        ds = lance.LanceDataset.commit(
            ds,
            lance.LanceOperation.Delete([fragment], [], ""),
            read_version=ds.version,
            detached=True,
        )
        assert lance_stream.open_dataset(table.uri, ds.version).verify(deep=True) == []


def test_tagged_detached_versions_survive_a_cleanup(tmp_path: Path) -> None:
    """pylance tags them, too; a cleanup keeps their files, whether they are tagged or not."""
    table = DetachedTable(tmp_path / "t")
    table.main.tags.create("staged", table.version)
    ds = table.main.append(MORE)
    ds.cleanup(retain_versions=1, delete_unverified=True)
    staged = lance_stream.open_dataset(table.uri, "staged")
    assert (ids(staged), staged.verify(deep=True)) == ([1, 2, 3, 4], [])
    assert ids(ds.overwrite(staged.scan())) == [1, 2, 3, 4]
