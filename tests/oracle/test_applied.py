"""A transaction of pylance's, applied by us, makes the version that pylance made by it."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_stream.commit.committer import read_transaction
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.storage.locations import open_store
from lance_stream.table.apply import Commit, Creation, apply
from lance_stream.table.apply.index_coverage import coverage
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations.versions import Restore
from tests.oracle.test_diffs import ACTS, History

pytestmark = pytest.mark.oracle


class IndexedHistory(History):
    """The same with indices: of each kind that the reference treats in its own way."""

    permanent_columns = ("id", "x", "y")

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__(uri, seed)
        self.index()

    def rows(self, keys: Any) -> pa.Table:
        rows = super().rows(keys)
        groups = pa.array([key % 3 for key in keys], pa.int64())
        if "y" in rows.column_names:
            groups = groups.cast(self.ds.schema.field("y").type)
            return rows.set_column(rows.column_names.index("y"), "y", groups)
        return rows.append_column("y", groups)

    def index(self) -> None:
        self.ds.create_scalar_index("id", "BTREE", replace=True)
        for name in self.ds.schema.names[1:]:
            self.ds.create_scalar_index(name, "BITMAP", replace=True)

    def cast(self) -> None:
        self.drop_indices("y_idx")
        types = [pa.int64(), pa.int32(), pa.int16()]
        self.ds.alter_columns({"path": "y", "data_type": self.dice.choice(types)})

    def update_some_columns(self) -> None:
        keys = pa.array(self.dice.sample(range(self.next_key), 5), pa.int64())
        source = pa.table({"id": keys, "y": pa.array([7] * 5, self.ds.schema.field("y").type)})
        self.ds.merge_insert("id").when_matched_update_all().execute(source)

    def any_fragment(self) -> Any:
        if not self.ds.get_fragments():
            self.append()
        return self.dice.choice(self.ds.get_fragments())

    def rewrite_column_in_place(self) -> None:
        fragment = self.any_fragment()
        ids = fragment.to_table(columns=["id"], with_row_id=True)
        source = pa.table(
            {
                "_rowid": ids["_rowid"],
                "y": pa.array([9] * len(ids), self.ds.schema.field("y").type),
            }
        )
        updated, fields = fragment.update_columns(source)
        operation = lance.LanceOperation.Update(
            updated_fragments=[updated], fields_modified=fields, update_mode="rewrite_columns"
        )
        lance.LanceDataset.commit(self.uri, operation, read_version=self.ds.version)

    def drop_a_fragment(self) -> None:
        fragment = self.any_fragment()
        keys = fragment.to_table(columns=["id"])["id"].to_pylist()
        self.ds.delete(f"id in ({', '.join(map(str, keys))})")

    def zone_map(self) -> None:
        self.ds.create_scalar_index("id", "ZONEMAP", name="zones", replace=True)

    def optimize(self) -> None:
        self.ds.optimize.optimize_indices()

    def drop_index(self) -> None:
        names = sorted({describe_index.name for describe_index in self.ds.describe_indices()})
        self.drop_indices(*self.dice.sample(names, min(1, len(names))))

    def drop_indices(self, *names: str) -> None:
        for name in {
            describe_index.name for describe_index in self.ds.describe_indices()
        }.intersection(names):
            self.ds.drop_index(name)


INDEXED_ACTS: list[Callable[[Any], None]] = [
    *ACTS, IndexedHistory.index, IndexedHistory.zone_map, IndexedHistory.optimize,
    IndexedHistory.drop_index, IndexedHistory.cast, IndexedHistory.update_some_columns,
    IndexedHistory.rewrite_column_in_place, IndexedHistory.drop_a_fragment,
]  # fmt: skip


def ids_of(fragment: Fragment) -> list[int] | None:
    if fragment.row_ids is None:
        return None
    assert isinstance(fragment.row_ids, bytes)
    return decode_row_ids(fragment.row_ids, fragment.physical_rows).to_array().tolist()


def stamps_of(fragment: Fragment) -> list[list[int]]:
    stored = (fragment.created_at_versions, fragment.last_updated_at_versions)
    return [
        decode_row_versions(value, fragment.physical_rows).to_array().tolist()  # type: ignore[arg-type]  # pylance keeps them in the manifest
        for value in stored
    ]


def comparable_fragment(fragment: Fragment) -> Any:
    """A fragment in words that do not depend on how its sequences are encoded."""
    sequences = ids_of(fragment), stamps_of(fragment)
    bare = replace(fragment, row_ids=None, created_at_versions=None, last_updated_at_versions=None)
    return bare, sequences


def comparable_index(index: IndexMetadata, living: set[int]) -> Any:
    covered = set(coverage(index)) & living if index.fragment_bitmap else None
    return replace(index, fragment_bitmap=b""), covered


def check_applied(log: ObjectStoreLog, version: int) -> None:
    theirs = log.read(version)
    transaction = read_transaction(log, theirs)
    assert transaction is not None
    operation = transaction.operation
    ours = apply(
        log.read(version - 1) if version > 1 else None,
        operation,
        Commit(timestamp_nanos=theirs.timestamp_nanos or 0),
        Creation(theirs.data_format) if version == 1 else None,
        log.read(operation.version) if isinstance(operation, Restore) else None,
    )
    assert [comparable_fragment(fragment) for fragment in ours.fragments] == [
        comparable_fragment(fragment) for fragment in theirs.fragments
    ]
    same = {
        "fragments": FragmentList(),
        "timestamp_nanos": None,
        "transaction_file": "",
        "inline_transaction": None,
        "writer_version": None,
        "index_section": None,
    }
    assert replace(ours, **same) == replace(theirs, **same)
    assert indices_of(ours) == indices_of(theirs)


def indices_of(manifest: Manifest) -> list[Any]:
    living = set(manifest.fragments.ids)
    section = manifest.index_section
    indices = () if section is None else decode_index_section(section)
    return sorted(
        (comparable_index(value, living) for value in indices), key=lambda entry: entry[0].uuid
    )


@pytest.mark.parametrize("seed", range(12))
def test_our_manifests_equal_pylances(tmp_path: Path, seed: int) -> None:
    """Both must derive the same table from a transaction, or they drift apart with each commit."""
    acts = random.Random(seed)
    history = History(str(tmp_path / "t"), seed)
    for _ in range(12):
        acts.choice(ACTS)(history)
    check_all(tmp_path / "t")


@pytest.mark.parametrize("seed", range(12))
def test_index_coverage_agrees_after_commits(tmp_path: Path, seed: int) -> None:
    """An index that claims a fragment too many loses matches."""
    acts = random.Random(seed)
    history = IndexedHistory(str(tmp_path / "t"), seed)
    for _ in range(12):
        acts.choice(INDEXED_ACTS)(history)
    check_all(tmp_path / "t")


def check_all(path: Path) -> None:
    log = ObjectStoreLog(open_store(str(path)))
    newest = lance.dataset(str(path)).version
    for version in range(1, newest + 1):
        check_applied(log, version)
