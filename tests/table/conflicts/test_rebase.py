from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from lance_stream.errors import RetryableConflictError
from lance_stream.table.conflicts.rebase import DeletionFilesToUnite, plan_rebase, rebased, unite
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations.rows import Delete, Update
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


def test_only_fragments_that_others_changed_are_united() -> None:
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


def test_dead_rows_of_both_sides_are_united() -> None:
    """Two deletes of different rows in one fragment must both hold."""
    deleted = unite(FILES, offsets(1, 5, 9), offsets(1), offsets(1, 3), 4)
    assert deleted.tolist() == [1, 3, 5, 9]
    assert deleted.dtype == np.uint32


def test_a_row_deleted_twice_requires_replanning() -> None:
    """The other writer may have updated the row, and its new version must be considered."""
    with pytest.raises(RetryableConflictError, match=r"2 rows of fragment 0 .* \[5, 9\]") as caught:
        unite(FILES, offsets(1, 5, 9), offsets(1), offsets(1, 5, 9), 4)
    assert caught.value.version == 4


def test_already_dead_rows_cause_no_conflict() -> None:
    """Deletion files contain all deleted rows, including those from before both writers."""
    assert unite(FILES, offsets(1, 5), offsets(1), offsets(1), 4).tolist() == [1, 5]


def test_revived_rows_stay_dead_as_planned() -> None:
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
