from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from pyroaring import BitMap

from lance_stream.errors import RetryableConflictError
from lance_stream.schema.fields import Schema
from lance_stream.table.apply.index_coverage import coverage
from lance_stream.table.conflicts.rebase import (
    DeletionFilesToUnite,
    plan_rebase,
    rebased,
    rebased_indices,
    unite,
)
from lance_stream.table.fragments.fragment import DataFile, DeletionFile, DeletionFileType
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations.rows import Delete, Update
from lance_stream.table.operations.versions import CreateIndex
from tests.commit.tables import create


def file(number: int, num_deleted: int = 1) -> DeletionFile:
    return DeletionFile(DeletionFileType.ARROW_ARRAY, 1, number, num_deleted)


def version(number: int, *files: DeletionFile | None) -> Manifest:
    manifest = create(*[10] * len(files)).read(1)
    fragments = [
        replace(fragment, deletion_file=deletion_file)
        for fragment, deletion_file in zip(manifest.fragments, files, strict=True)
    ]
    return replace(manifest, version=number, fragments=FragmentList.of(fragments))


def offsets(*values: int) -> npt.NDArray[np.uint32]:
    return np.array(values, np.uint32)


FILES = DeletionFilesToUnite(0, 10, file(1), None, file(2))


def test_only_shared_deletions_are_united() -> None:
    """Each union reads two deletion files and writes a third."""
    read, newest = version(1, None, file(1), file(2)), version(4, None, file(1), file(9))
    ours = [replace(fragment, deletion_file=file(20 + fragment.id)) for fragment in read.fragments]
    assert plan_rebase(Delete(tuple(ours), ()), read, newest) == [
        DeletionFilesToUnite(2, 10, file(22), file(2), file(9))
    ]


def test_a_missing_fragment_requires_replanning() -> None:
    """The rows have moved, so the planned offsets mean nothing any more."""
    read, newest = version(1, None, None), version(4, None)
    with pytest.raises(RetryableConflictError, match="fragment 1"):
        plan_rebase(Delete(tuple(read.fragments), ()), read, newest)


def test_an_unread_fragment_requires_replanning() -> None:
    """The version on which the operation says it was planned did not have the fragment."""
    read, newest = version(1, None), version(4, None, None)
    with pytest.raises(RetryableConflictError, match="fragment 1"):
        plan_rebase(Delete(tuple(newest.fragments), ()), read, newest)


def test_deletions_of_both_sides_are_merged() -> None:
    """Two deletes of different rows in one fragment must both hold."""
    deleted = unite(FILES, offsets(1, 5, 9), offsets(1), offsets(1, 3), 4)
    assert deleted.tolist() == [1, 3, 5, 9]
    assert deleted.dtype == np.uint32


def test_a_row_deleted_twice_requires_replanning() -> None:
    """The other writer may have updated the row, and its new version must be considered."""
    with pytest.raises(RetryableConflictError, match=r"2 rows of fragment 0 .* \[5, 9\]") as caught:
        unite(FILES, offsets(1, 5, 9), offsets(1), offsets(1, 5, 9), 4)
    assert caught.value.version == 4


def test_already_deleted_rows_cause_no_conflict() -> None:
    """Deletion files contain all deleted rows, including those from before both writers."""
    assert unite(FILES, offsets(1, 5), offsets(1), offsets(1), 4).tolist() == [1, 5]


def test_revived_rows_stay_deleted_as_planned() -> None:
    """The planned deletion file wins over rows that another writer brought back."""
    assert unite(FILES, offsets(1, 5), offsets(1), offsets(), 4).tolist() == [1, 5]


@pytest.mark.parametrize("kind", [Delete, Update])
def test_the_operation_states_the_new_files(kind: type[Delete] | type[Update]) -> None:
    """The committed operation must describe the united deletions, as later writers are checked
    against it.
    """
    fragments = tuple(version(1, file(1), file(2), file(3)).fragments)
    if kind is Delete:
        delete = rebased(Delete(fragments, (7,), "p"), {0: file(9), 2: None})
        assert isinstance(delete, Delete)
        assert (delete.deleted_fragment_ids, delete.predicate) == ((7, 2), "p")
        updated = delete.updated_fragments
    else:
        update = rebased(Update((7,), fragments), {0: file(9), 2: None})
        assert isinstance(update, Update)
        assert update.removed_fragment_ids == (7, 2)
        updated = update.updated_fragments
    assert updated == (replace(fragments[0], deletion_file=file(9)), fragments[1])


INDEX = IndexMetadata(bytes(16), (0,), "ids", 1, BitMap([1, 2, 3, 4, 9]).serialize())
OTHER = replace(INDEX, uuid=bytes([1]) * 16, field_ids=(1,))


def with_files(start: Manifest, files: dict[int, tuple[DataFile, ...]]) -> Manifest:
    """Return the next version, in which some fragments have other files, or none exists."""
    fragments = [
        replace(fragment, files=files.get(fragment.id, fragment.files))
        for fragment in start.fragments
        if files.get(fragment.id, fragment.files)
    ]
    return replace(start, version=2, fragments=FragmentList.of(fragments))


def test_new_indices_lose_changed_fragments() -> None:
    """The index has the old values of a column that another writer has stored in a new file; it
    still serves all other fragments.
    """
    read = version(1, *[None] * 6)
    files = {fragment.id: fragment.files[0] for fragment in read.fragments}
    newest = with_files(
        read,
        {
            0: (replace(files[0], path="new"),),
            1: (replace(files[1], field_ids=(0, -2)), DataFile("new", (1,), (0,), (2, 2))),
            2: (replace(files[2], base_id=1),),
            3: (replace(files[3], size_bytes=9, column_indices=(1, 0)),),
            4: (),
        },
    )
    operation = rebased_indices(CreateIndex((INDEX, OTHER), (INDEX,)), read, newest)
    assert operation.removed_indices == (INDEX,)
    assert [coverage(index) for index in operation.new_indices] == [
        BitMap([1, 3, 4, 9]),
        BitMap([3, 4, 9]),
    ]


def test_indices_survive_what_is_gone() -> None:
    """Neither a dropped column nor a fragment that only one version has can have new values."""
    read = version(1, *[None] * 4)
    newest = replace(version(2, *[None] * 10), schema=Schema(read.schema.fields[1:]))
    operation = rebased_indices(CreateIndex((INDEX,)), read, newest)
    assert [coverage(index) for index in operation.new_indices] == [BitMap([4, 9])]


def test_new_zone_maps_are_planned_again() -> None:
    """A later refresh of a zone map would keep the zones of values that no longer exist."""
    read = version(1, *[None] * 3)
    newest = with_files(read, {2: (replace(list(read.fragments)[2].files[0], path="new"),)})
    zones = replace(INDEX, details=("/lance.index.pb.ZoneMapIndexDetails", b""))
    for index in zones, replace(zones, fragment_bitmap=b""):
        assert rebased_indices(CreateIndex((index,)), read, read).new_indices == (index,)
    with pytest.raises(RetryableConflictError, match="'ids' have new values in version 2"):
        rebased_indices(CreateIndex((zones,)), read, newest)
    uncovered = replace(zones, fragment_bitmap=BitMap([0, 1]).serialize())
    assert rebased_indices(CreateIndex((uncovered,)), read, newest).new_indices == (uncovered,)
