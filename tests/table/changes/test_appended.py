"""What a version appended, as found by the fragments of two manifests."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import Schema, assign_ids
from lance_stream.table.changes.appended import appended_fragments
from lance_stream.table.fragments.fragment import DataFile, DeletionFile, DeletionFileType, Fragment
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.manifest import DataFormat, FragmentList, Manifest
from lance_stream.table.operations.columns import Merge
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.versions import Restore
from tests.commit.tables import SCHEMA

WIDER = assign_ids(
    from_arrow(pa.schema([("id", pa.int64()), ("x", pa.string()), ("y", pa.float64())]))
)


def fragment(number: int, num_rows: int = 10, deleted: int = 0) -> Fragment:
    file = DataFile(f"{number}.lance", (0, 1), (0, 1), (2, 2))
    deletion_file = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, deleted) if deleted else None
    return Fragment(number, (file,), num_rows, deletion_file)


def version(
    number: int, *fragments: Fragment, schema: Schema = SCHEMA, highest: int | None = None
) -> Manifest:
    return Manifest(
        number,
        schema,
        FragmentList.of(fragments),
        DataFormat("lance", "2.2"),
        max_fragment_id=highest,
    )


def outcome(
    older: Manifest | None, newer: Manifest, operation: Operation | None
) -> tuple[list[int], str | None]:
    appended = appended_fragments(older, newer, operation)
    assert appended.version == newer.version
    return [entry.id for entry in appended.fragments], appended.changes


FIRST = version(1, fragment(0), fragment(1))


def with_values(number: int, path: str, field_id: int) -> Fragment:
    """Return a fragment that has a column in a file of its own."""
    new_fragment = fragment(number)
    return replace(
        new_fragment, files=(*new_fragment.files, DataFile(path, (field_id,), (0,), (2, 2)))
    )


def test_the_first_version_appends_everything() -> None:
    """A consumer that starts from nothing needs all rows of the first version."""
    assert outcome(None, FIRST, Overwrite((), SCHEMA)) == ([0, 1], None)


@pytest.mark.parametrize("operation", [Append(()), Update((), (), ()), Merge((), SCHEMA), None])
def test_new_fragments_after_old_are_appended(operation: Operation | None) -> None:
    """An append-only source delivers exactly these fragments, whichever operation added them."""
    newer = version(2, fragment(0), fragment(1), fragment(2), fragment(3))
    assert outcome(FIRST, newer, operation) == ([2, 3], None)


def test_a_compaction_appends_nothing() -> None:
    """Rewritten rows have new fragments but were delivered before."""
    newer = version(2, fragment(2, 20), highest=2)
    assert outcome(FIRST, newer, Rewrite(())) == ([], None)


def test_an_ambiguous_compaction_is_no_append() -> None:
    """What looks like a compaction may be an update."""
    appended, changes = outcome(FIRST, version(2, fragment(2, 20)), None)
    assert appended == []
    assert changes == "removes the rows of fragment 0"


@pytest.mark.parametrize(
    ("fragments", "operation", "changes"),
    [
        ([fragment(0), fragment(1, deleted=2)], Delete((), ()), "changes or deletes rows of"),
        ([fragment(0)], Delete((), ()), "removes the rows of fragment 1 (by Delete)"),
        ([fragment(0), fragment(1, deleted=2), fragment(2)], Update((), (), ()), "by Update"),
        ([fragment(2), fragment(3)], Overwrite((), SCHEMA), "rows of fragment 0 (by Overwrite)"),
        ([fragment(0), with_values(1, "new", 1)], Update((), (), ()), "other values (by Update)"),
    ],
)
def test_changed_rows_give_only_a_reason(
    fragments: Sequence[Fragment], operation: Operation, changes: str
) -> None:
    """An append-only source must fail with the reason rather than deliver a part of the change."""
    appended, reason = outcome(FIRST, version(2, *fragments), operation)
    assert appended == []
    assert reason is not None
    assert changes in reason


def test_restored_rows_are_not_appended_rows() -> None:
    """The consumer got these rows before, so delivering them again would duplicate them."""
    older = version(5, fragment(0), highest=4)
    newer = version(6, fragment(0), fragment(1), highest=4)
    for operation in (Restore(3), None):  # an id that was given before tells it, too
        appended, changes = outcome(older, newer, operation)
        assert appended == []
        assert changes is not None
        assert changes.startswith("brings back the rows of fragment 1")
    with_highest = version(6, fragment(0), fragment(4), highest=4)
    assert outcome(older, with_highest, None)[1] == "brings back the rows of fragment 4"
    assert outcome(version(5), version(6, fragment(0)), None) == ([0], None)


def test_legacy_files_have_no_column_numbers() -> None:
    """Files of version 0.1 store the columns in the order of their fields."""
    (file,) = fragment(0).files
    legacy = replace(file, column_indices=(), file_version=(0, 1))
    older = version(1, replace(fragment(0), files=(legacy,)))
    sized = version(2, replace(fragment(0), files=(replace(legacy, size_bytes=99),)))
    assert outcome(older, sized, UpdateConfig()) == ([], None)
    other = version(2, replace(fragment(0), files=(replace(legacy, path="other.lance"),)))
    assert outcome(older, other, None)[1] == "gives rows of fragment 0 other values"


def test_fragments_without_live_rows_may_go() -> None:
    """Dropping a fragment whose rows are all deleted changes nothing for a consumer."""
    older = version(1, fragment(0), fragment(1, deleted=10))
    assert outcome(older, version(2, fragment(0)), Delete((), ())) == ([], None)


def test_losing_unsized_fragments_is_a_change() -> None:
    """Old writers stated no row count, so the fragment may have had live rows."""
    older = version(1, fragment(0), fragment(1, num_rows=0))
    assert outcome(older, version(2, fragment(0)), Delete((), ()))[1] is not None


def test_equivalent_fragment_metadata_is_no_change() -> None:
    """Row ids may be encoded differently, and file sizes filled in later."""
    stated = replace(fragment(1), row_ids=encode_row_ids(RowIdSequence.from_range(10, 20)))
    sized = replace(
        fragment(0), files=(replace(fragment(0).files[0], size_bytes=99),)
    )  # a writer that fills in what the one before it left out
    assert outcome(FIRST, version(2, sized, stated), UpdateConfig()) == ([], None)


def test_column_backfills_change_rows_unless_ignored() -> None:
    """A new column gives delivered rows other values, which a consumer can choose not to care
    about.
    """
    newer = version(2, with_values(0, "y0", 2), with_values(1, "y1", 2), schema=WIDER)
    assert outcome(FIRST, newer, Merge((), WIDER)) == (
        [],
        "gives rows of fragment 0 other values (by Merge)",
    )
    passed = appended_fragments(FIRST, newer, Merge((), WIDER), column_backfills=False)
    assert (passed.fragments, passed.changes) == ((), None)


def test_rewritten_columns_always_change_rows() -> None:
    """Ignoring column backfills makes no difference."""
    newer = version(2, with_values(0, "x0", 1), fragment(1))
    reported = appended_fragments(FIRST, newer, Update((), (), ()), column_backfills=False)
    assert reported.changes == "gives rows of fragment 0 other values (by Update)"


def test_equal_fragments_are_not_decoded() -> None:
    """Polling a large table must cost only what is new."""
    older = version(1, *(fragment(number) for number in range(100)))
    encoded = FragmentList(older.fragments.raws)
    newer = replace(older, version=2, fragments=encoded.appended([fragment(100)]))
    appended = appended_fragments(replace(older, fragments=encoded), newer, Append(()))
    assert [entry.id for entry in appended.fragments] == [100]
    assert newer.fragments.num_decoded == 1
