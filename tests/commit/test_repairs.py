"""What old writers left out of manifests: counts of rows, and sequences in separate files."""

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.repairs import with_counts, with_sequences
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import ExternalFile, Fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Update
from tests.contracts.watched_stores import WatchedStore
from tests.table.apply.test_next_version import killing, table


@pytest.mark.parametrize("kind", ["removed", "updated", "neither", "gone"])
def test_sequences_of_touched_fragments_are_inlined(kind: str) -> None:
    """Moved rows take their versions along, also from a fragment that loses all of its rows."""
    manifest = table(3, 2)
    data = manifest.fragments[1].row_ids
    assert isinstance(data, bytes)
    store = open_store(f"memory://{uuid.uuid4()}/t")
    store.write("_rows/1", b"before" + data)
    stored = replace(manifest.fragments[1], row_ids=ExternalFile("_rows/1", 6, len(data)))
    manifest = replace(manifest, fragments=FragmentList.of([manifest.fragments[0], stored]))
    operations: dict[str, Operation] = {
        "removed": Update(removed_fragment_ids=(1,)),
        "updated": Update(updated_fragments=(killing(stored, 1),)),
        "neither": Append(()),
        "gone": Update(removed_fragment_ids=(9,)),
    }
    inlined = with_sequences(store, manifest, operations[kind]).fragments[1]
    assert inlined.row_ids == (data if kind in ("removed", "updated") else stored.row_ids)


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Store, Manifest]:
    """A table of two fragments, of which the second has deleted rows, and its newest version."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": range(3)}))
    ds.append(pa.table({"id": range(10, 15)})).delete("id IN (11, 13)")
    store = open_store(tmp_path / "t")
    return store, ObjectStoreLog(store).read_latest()


def without(manifest: Manifest, index: int, *, rows: bool, deleted: bool) -> Manifest:
    """Return a version without counts of a fragment, as old writers left them out."""
    fragment = manifest.fragments[index]
    file = fragment.deletion_file
    if deleted:
        assert file is not None
        file = replace(file, num_deleted_rows=0)
    physical_rows = 0 if rows else fragment.physical_rows
    changed = replace(fragment, physical_rows=physical_rows, deletion_file=file)
    return replace(manifest, fragments=manifest.fragments.replaced({index: changed}))


@pytest.mark.parametrize(
    ("index", "rows", "deleted"),
    [(0, True, False), (1, True, False), (1, False, True), (1, True, True)],
)
def test_missing_counts_are_read(
    counted: tuple[Store, Manifest], index: int, rows: bool, deleted: bool
) -> None:
    """Old writers left them out; files whose count is known are not read."""
    store, manifest = counted
    reader = WatchedStore(store)
    unknown = without(manifest, index, rows=rows, deleted=deleted)
    assert unknown.fragments != manifest.fragments
    assert with_counts(reader, unknown).fragments == manifest.fragments
    folders = {path.partition("/")[0] for _, path in reader.calls}
    assert folders == set(["data"] * rows + ["_deletions"] * deleted)


def test_known_counts_are_not_read(counted: tuple[Store, Manifest]) -> None:
    """Every commit asks, and a fragment without files has no count to read."""
    store, manifest = counted
    reader = WatchedStore(store)
    empty = Fragment(9, (), 0)
    for fragments in ([*manifest.fragments], [*manifest.fragments, empty]):
        version = replace(manifest, fragments=FragmentList.of(fragments))
        assert with_counts(reader, version).fragments == version.fragments
    assert reader.calls == []


@pytest.mark.parametrize("what", ["data", "deletion"])
def test_counts_elsewhere_are_refused(counted: tuple[Store, Manifest], what: str) -> None:
    """The path would be looked up in the table's directory, which may have another file there."""
    store, manifest = counted
    unknown = without(manifest, 1, rows=True, deleted=True)
    fragment = unknown.fragments[1]
    assert fragment.deletion_file is not None
    if what == "data":
        changed = replace(fragment, files=(replace(fragment.files[0], base_id=1),))
    else:
        changed = replace(fragment, deletion_file=replace(fragment.deletion_file, base_id=1))
    unknown = replace(unknown, fragments=unknown.fragments.replaced({1: changed}))
    with pytest.raises(UnsupportedFeatureError, match="row count of fragment 1, which is stored"):
        with_counts(store, unknown)
    first = replace(
        without(manifest, 0, rows=True, deleted=False).fragments[0],
        files=(replace(manifest.fragments[0].files[0], base_id=1),),
    )
    unknown = replace(manifest, fragments=manifest.fragments.replaced({0: first}))
    with pytest.raises(UnsupportedFeatureError, match="row count of fragment 0"):
        with_counts(store, unknown)
