"""Diffs of hand-made versions: a fragment is its rows, each a row id with its stamp."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.schema.fields import Schema
from lance_stream.table.changes.diff import (
    NOTHING_HIDDEN,
    DiffPlan,
    History,
    TableChanges,
    changed_row_ids,
    diff,
    plan_diff,
)
from lance_stream.table.feature_flags import STABLE_ROW_IDS
from lance_stream.table.fragments.fragment import (
    DataFile,
    DeletionFile,
    DeletionFileType,
    ExternalFile,
    Fragment,
    LineageColumn,
)
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.table.manifest import DataFormat, FragmentList, Manifest
from tests.commit.tables import SCHEMA

Change = dict[str, list[int]]
FILE = DataFile("a.lance", (0, 1), (0, 1), (2, 2))


@dataclass
class Rows:
    """One fragment: the row id and update stamp of each row offset, and the deleted offsets."""

    id: int
    row_ids: Sequence[int]
    stamps: Sequence[int] | int = 1
    deleted: Sequence[int] = ()
    files: tuple[DataFile, ...] = (FILE,)

    @property
    def all_stamps(self) -> list[int]:
        if isinstance(self.stamps, int):
            return [self.stamps] * len(self.row_ids)
        return list(self.stamps)

    def live(self) -> dict[int, tuple[int, int, int]]:
        """Row id -> fragment, offset, stamp of each live row."""
        return {
            row_id: (self.id, offset, stamp)
            for offset, (row_id, stamp) in enumerate(
                zip(self.row_ids, self.all_stamps, strict=True)
            )
            if offset not in self.deleted
        }

    def fragment(self) -> Fragment:
        file = None
        if self.deleted:
            number = hash((self.id, tuple(self.deleted))) % (1 << 32)
            file = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, number, len(self.deleted))
        return Fragment(
            self.id,
            self.files,
            len(self.row_ids),
            file,
            encode_row_ids(self.row_ids),
            encode_row_versions(RowVersionSequence.from_array(self.all_stamps)),
        )


@dataclass
class Version:
    number: int
    rows: Sequence[Rows]
    schema: Schema = SCHEMA
    flags: int = STABLE_ROW_IDS
    manifest: Manifest = field(init=False)
    deleted: Mapping[tuple[int, DeletionFile], "np.ndarray[tuple[int], np.dtype[np.uint32]]"] = (
        field(init=False)
    )

    def __post_init__(self) -> None:
        fragments = [row.fragment() for row in self.rows]
        self.manifest = Manifest(
            self.number,
            self.schema,
            FragmentList.of(fragments),
            DataFormat("lance", "2.2"),
            reader_feature_flags=self.flags,
        )
        self.deleted = {
            (fragment.id, fragment.deletion_file): np.array(sorted(rows.deleted), np.uint32)
            for fragment, rows in zip(fragments, self.rows, strict=True)
            if fragment.deletion_file
        }

    def live(self) -> dict[int, tuple[int, int, int]]:
        return {row_id: location for rows in self.rows for row_id, location in rows.live().items()}


def version(number: int, *rows: Rows) -> Version:
    return Version(number, rows)


def changes(older: Version | None, newer: Version) -> TableChanges:
    plan = plan_diff(older.manifest if older else None, newer.manifest)
    deletions = {**(older.deleted if older else {}), **newer.deleted}
    requested = {(fragment.id, fragment.deletion_file) for fragment in plan.deletion_files_of}
    return diff(plan, {key: deletions[key] for key in requested})


def ids(older: Version | None, newer: Version) -> Change:
    """The row ids of each kind of change, having checked every place that the diff names."""
    differences = changes(older, newer)
    before = {(f, o): row_id for row_id, (f, o, _) in (older.live() if older else {}).items()}
    after = {(f, o): row_id for row_id, (f, o, _) in newer.live().items()}
    result: Change = {"insert": [], "update": [], "delete": []}
    for kind, parts, positions in (
        ("insert", differences.inserts, after),
        ("delete", differences.deletes, before),
    ):
        for fragment, offsets in parts:
            assert offsets.dtype == np.uint32
            assert_ascending(offsets.tolist())
            result[kind] += [positions[fragment.id, offset] for offset in offsets.tolist()]
        assert_ascending([part.fragment.id for part in parts])
    for fragment, offsets, addresses in differences.updates:
        assert (offsets.dtype, addresses.dtype) == (np.uint32, np.uint64)
        assert_ascending(offsets.tolist())
        for offset, address in zip(offsets.tolist(), addresses.tolist(), strict=True):
            row_id = after[fragment.id, offset]
            assert before[address >> 32, address & 0xFFFFFFFF] == row_id
            result["update"].append(row_id)
    assert_ascending([update.fragment.id for update in differences.updates])
    assert differences.num_changes == sum(map(len, result.values()))
    return result


def assert_ascending(values: Iterable[int]) -> None:
    listed = list(values)
    assert listed == sorted(set(listed))


def expect(
    insert: Iterable[int] = (), update: Iterable[int] = (), delete: Iterable[int] = ()
) -> Change:
    return {"insert": list(insert), "update": list(update), "delete": list(delete)}


FIRST = version(1, Rows(0, range(10)), Rows(1, range(10, 15)))


def test_first_version_rows_are_inserts() -> None:
    """A feed from the beginning reports the initial rows."""
    assert ids(None, FIRST) == expect(insert=range(15))


def test_deleted_rows_are_not_inserted() -> None:
    """Rows that were never visible cannot have been inserted."""
    assert ids(None, version(1, Rows(0, range(5), deleted=[0, 3]))) == expect(insert=[1, 2, 4])


def test_an_append_gives_inserts() -> None:
    """The ids are new, so the rows are neither updates nor moved rows."""
    newer = version(2, *FIRST.rows, Rows(2, range(15, 18), 2))
    assert ids(FIRST, newer) == expect(insert=[15, 16, 17])


def test_unchanged_fragments_are_never_decoded() -> None:
    """A diff must cost what changed, not what the table holds."""
    newer = version(2, *FIRST.rows, Rows(2, range(15, 18), 2))
    older = replace(FIRST.manifest, fragments=FragmentList(FIRST.manifest.fragments.raws))
    after = replace(newer.manifest, fragments=FragmentList(newer.manifest.fragments.raws))
    assert diff(plan_diff(older, after)).num_changes == 3
    assert (older.fragments.num_decoded, after.fragments.num_decoded) == (0, 1)


def test_only_changed_deletion_files_are_requested() -> None:
    """A deletion file costs a request to the store."""
    older = version(1, Rows(0, range(10), deleted=[1]), Rows(1, range(10, 15), deleted=[2]))
    newer = version(2, older.rows[0], Rows(1, range(10, 15), deleted=[2, 4]))
    plan = plan_diff(older.manifest, newer.manifest)
    assert [(entry.id, entry.deletion_file) for entry in plan.deletion_files_of] == [
        (1, older.manifest.fragments[1].deletion_file),
        (1, newer.manifest.fragments[1].deletion_file),
    ]


def test_rows_deleted_in_place_are_deletes() -> None:
    """The fragment stays, and only its deletion file shows the change."""
    newer = version(2, Rows(0, range(10), deleted=[3, 7]), FIRST.rows[1])
    assert ids(FIRST, newer) == expect(delete=[3, 7])


def test_rows_of_removed_fragments_are_deletes() -> None:
    """A delete of all rows drops the fragment instead of writing a deletion file."""
    assert ids(FIRST, version(2, FIRST.rows[0])) == expect(delete=range(10, 15))


def test_deleted_rows_are_not_deleted_again() -> None:
    """Consumers would see a second delete of a row that is gone."""
    older = version(1, Rows(0, range(5), deleted=[0, 1]))
    assert ids(older, version(2)) == expect(delete=[2, 3, 4])


def test_restamped_moved_rows_are_updates() -> None:
    """An update deletes the old row and writes the new one under the same id."""
    newer = version(2, Rows(0, range(10), deleted=[2, 4]), FIRST.rows[1], Rows(2, [4, 2, 15], 2))
    assert ids(FIRST, newer) == expect(insert=[15], update=[4, 2])


def test_a_wholly_updated_fragment_gives_updates() -> None:
    """The old fragment is gone, but its rows live on under the same ids."""
    newer = version(2, FIRST.rows[0], Rows(2, range(10, 15), 2))
    assert ids(FIRST, newer) == expect(update=range(10, 15))


def test_versions_can_insert_update_and_delete() -> None:
    """An upsert with deletes does all three in one commit."""
    newer = version(2, Rows(0, range(10), deleted=[2, 4, 6]), FIRST.rows[1], Rows(2, [4, 15], 2))
    assert ids(FIRST, newer) == expect(insert=[15], update=[4], delete=[2, 6])


def test_a_compaction_is_no_change() -> None:
    """Rows move with their stamps, and consumers must not see them again."""
    older = version(
        5, Rows(0, range(5), [1, 1, 4, 1, 1], deleted=[1]), Rows(1, [9, 7], 3), Rows(2, [8], 2)
    )
    newer = version(6, Rows(3, [0, 2, 3, 4, 9, 7], [1, 4, 1, 1, 3, 3]), older.rows[2])
    assert ids(older, newer) == expect()


def test_rows_stamped_in_place_are_updates() -> None:
    """Updates of columns leave the rows where they are and change only stamps and files."""
    newer = version(2, Rows(0, range(10), [1, 2] * 5), FIRST.rows[1])
    assert ids(FIRST, newer) == expect(update=[1, 3, 5, 7, 9])


def test_deleted_rows_are_never_updates() -> None:
    """Row versions of deleted rows make no difference."""
    older = version(1, Rows(0, range(4), deleted=[0]))
    newer = version(2, Rows(0, range(4), 2, deleted=[0, 1]))
    assert ids(older, newer) == expect(update=[2, 3], delete=[1])


def test_restores_of_deleted_rows_insert() -> None:
    """Consumers removed the rows and need them again."""
    older = version(3, Rows(0, range(10), deleted=[3, 7]))
    assert ids(older, version(4, Rows(0, range(10)))) == expect(insert=[3, 7])


def test_restores_that_remove_rows_delete() -> None:
    """Consumers still hold the rows of the abandoned version."""
    older = version(3, *FIRST.rows, Rows(2, range(15, 18), 2))
    assert ids(older, version(4, *FIRST.rows)) == expect(delete=[15, 16, 17])


def test_restores_that_revert_updates_update() -> None:
    """The stamps go back to older versions, so only inequality shows the change."""
    older = version(3, Rows(0, range(10), deleted=[2, 4]), FIRST.rows[1], Rows(2, [4, 2], 2))
    assert ids(older, version(4, *FIRST.rows)) == expect(update=[2, 4])


@pytest.mark.floors
def test_restores_insert_and_update_rows() -> None:
    """One fragment can hold both kinds of change after a restore."""
    older = version(3, Rows(0, range(6), [1, 1, 1, 5, 1, 1], deleted=[0, 4]), Rows(1, [4], 3))
    newer = version(4, Rows(0, range(6), 1))
    assert ids(older, newer) == expect(insert=[0], update=[3, 4])


def test_reused_fragment_ids_are_recognized() -> None:
    """A fragment of the same id may hold other rows in a later version."""
    older = version(3, Rows(0, range(10)), Rows(1, [20, 21], 3))
    newer = version(4, Rows(0, range(10)), Rows(1, [30, 21], 4))
    assert ids(older, newer) == expect(insert=[30], update=[21], delete=[20])


def test_reencoded_row_ids_are_no_change() -> None:
    """The same ids have several valid encodings, and different bytes alone prove nothing."""
    newer = version(2, *FIRST.rows)
    spelled = b"".join(encode_row_ids([number]) for number in range(10))
    first = replace(newer.manifest.fragments[0], row_ids=spelled)
    manifest = replace(newer.manifest, fragments=newer.manifest.fragments.replaced({0: first}))
    assert diff(plan_diff(FIRST.manifest, manifest)).num_changes == 0


def test_new_fragment_metadata_is_no_change() -> None:
    """A completed file size must not deliver a whole fragment again."""
    newer = version(2, Rows(0, range(10), files=(replace(FILE, size_bytes=77),)), FIRST.rows[1])
    assert ids(FIRST, newer) == expect()


NEW_COLUMN = DataFile("b.lance", (1,), (0,), (2, 2))
WITHOUT_X = replace(FILE, field_ids=(0, -2))


def test_unstamped_replacements_update_live_rows() -> None:
    """Writers that replace a column without stamps still changed every live row."""
    older = version(1, Rows(0, range(4), deleted=[1]), Rows(1, range(10, 15)))
    newer = version(
        2, Rows(0, range(4), deleted=[1, 2], files=(WITHOUT_X, NEW_COLUMN)), older.rows[1]
    )
    assert ids(older, newer) == expect(update=[0, 3], delete=[2])


def test_partial_stamps_limit_the_updates() -> None:
    """Stamps of some rows prove that the writer knows which rows it changed."""
    newer = version(
        2, Rows(0, range(10), [2] + [1] * 9, files=(WITHOUT_X, NEW_COLUMN)), FIRST.rows[1]
    )
    assert ids(FIRST, newer) == expect(update=[0])


def test_stamps_of_deleted_rows_are_ignored() -> None:
    """No live row is stamped: the replaced column updates all of them."""
    older = version(1, Rows(0, range(3), deleted=[0]))
    newer = version(2, Rows(0, range(3), [2, 1, 1], deleted=[0], files=(WITHOUT_X, NEW_COLUMN)))
    assert ids(older, newer) == expect(update=[1, 2])


def test_an_unstamped_backfill_updates_every_row() -> None:
    """All rows have a value that they did not have before."""
    older = version(
        1, Rows(0, range(3), files=(replace(FILE, field_ids=(0,), column_indices=(0,)),))
    )
    newer = version(2, Rows(0, range(3), files=(*older.rows[0].files, NEW_COLUMN)))
    assert ids(older, newer) == expect(update=[0, 1, 2])


def test_legacy_files_have_no_column_numbers() -> None:
    """Files of version 0.1 store the columns in the order of their fields."""
    legacy = replace(FILE, column_indices=(), file_version=(0, 1))
    older = version(1, Rows(0, range(3), files=(legacy,)))
    sized = version(2, Rows(0, range(3), files=(replace(legacy, size_bytes=77),)))
    assert ids(older, sized) == expect()
    other = version(2, Rows(0, range(3), files=(replace(legacy, path="b.lance"),)))
    assert ids(older, other) == expect(update=[0, 1, 2])


def test_fragments_with_equal_starts_are_compared() -> None:
    """After another fragment is gone, they are matched by their first bytes, with long names."""
    long = (replace(FILE, path="x" * 200),)
    older = version(1, Rows(0, [0]), Rows(1, range(1, 5), files=long), Rows(2, [9], files=long))
    newer = version(2, Rows(1, range(1, 5), deleted=[2], files=long), Rows(2, [9], files=long))
    assert ids(older, newer) == expect(delete=[0, 3])


def test_dropped_columns_update_nothing() -> None:
    """The remaining columns keep their values, and the schema tells about the other."""
    newer = Version(
        2,
        [Rows(row.id, row.row_ids, files=(WITHOUT_X,)) for row in FIRST.rows],
        Schema(SCHEMA.fields[:1]),
    )
    assert ids(FIRST, newer) == expect()


def test_an_added_null_column_updates_nothing() -> None:
    """No file changes when a column without values is added."""
    added = replace(SCHEMA.fields[1], id=2, name="y")
    assert ids(FIRST, Version(2, FIRST.rows, Schema((*SCHEMA.fields, added)))) == expect()


def test_sequences_in_other_files_are_requested() -> None:
    """The format can store row ids and versions outside of the manifest, where the plan cannot
    read them.
    """
    older, newer = version(1, Rows(0, range(3))), version(2, Rows(0, range(3), [1, 2, 1]))
    before, after = older.manifest.fragments[0], newer.manifest.fragments[0]
    ids_at, stamps_at = ExternalFile("ids", 0, 9), ExternalFile("stamps", 5, 9)
    moved = replace(after, row_ids=ids_at, last_updated_at_versions=stamps_at)
    manifest = replace(newer.manifest, fragments=FragmentList.of([moved]))
    plan = plan_diff(older.manifest, manifest)
    assert plan.sequences == (ids_at, stamps_at)
    assert isinstance(before.row_ids, bytes)
    assert isinstance(after.last_updated_at_versions, bytes)
    differences = diff(
        plan, {}, {ids_at: before.row_ids, stamps_at: after.last_updated_at_versions}
    )
    assert [update.offsets.tolist() for update in differences.updates] == [[1]]
    assert changed_row_ids(differences, {ids_at: before.row_ids}).tolist() == [1]


@dataclass
class Values:
    """A hidden column."""

    values: "np.ndarray[tuple[int], np.dtype[np.uint64]]"

    @property
    def num_ids(self) -> int:
        return len(self.values)

    def to_array(self) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        return self.values

    def take(
        self, offsets: "np.ndarray[tuple[int], np.dtype[np.uint32]]"
    ) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        return self.values[offsets]


def test_hidden_columns_have_all_rows() -> None:
    """Without a count from the manifest, as in old versions, the column's counts."""
    (stored,) = version(2, Rows(0, range(4))).manifest.fragments
    file = DataFile("hidden.lance", (-3, -5), (0, 1), (2, 2))
    row_ids, row_versions = LineageColumn(-3, file), LineageColumn(-5, file)
    hidden = replace(stored, row_ids=row_ids, last_updated_at_versions=row_versions)
    older = version(1, Rows(0, [3, 2, 1, 0]))
    for counted, num_values, error in (
        (hidden, 4, ""),
        (replace(hidden, physical_rows=0), 4, ""),
        (hidden, 3, "fragment 0 has 4 rows, but a hidden column of its lineage has 3 values"),
    ):
        fragments = FragmentList.of([counted])
        newer = replace(older.manifest, version=2, fragments=fragments)
        plan = plan_diff(older.manifest, newer)
        columns = {
            row_ids: Values(np.arange(num_values, dtype=np.uint64)),
            row_versions: Values(np.array([1, 2, 1, 2][:num_values], np.uint64)),
        }
        if error:
            with pytest.raises(CorruptDataError, match=error):
                diff(plan, {}, columns)
            continue
        (updated,) = diff(plan, {}, columns).updates
        assert updated.offsets.tolist() == [1, 3]
        assert updated.addresses_before.tolist() == [2, 0]


def test_uncounted_rows_have_as_many_ids() -> None:
    """Old writers stated no row count, and the row ids tell it."""
    uncounted = [replace(entry, physical_rows=0) for entry in FIRST.manifest.fragments]
    manifest = replace(FIRST.manifest, fragments=FragmentList.of(uncounted))
    assert diff(plan_diff(None, manifest)).num_changes == 15


def test_deletion_files_may_be_empty() -> None:
    """The format allows one without rows."""
    file = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, 0)
    emptied = replace(FIRST.manifest.fragments[0], deletion_file=file)
    manifest = replace(FIRST.manifest, version=2, fragments=FragmentList.of([emptied]))
    rows = {(0, file): np.empty(0, np.uint32)}
    assert diff(plan_diff(None, manifest), rows).num_changes == 10


def test_sequences_in_hidden_columns_are_requested() -> None:
    """The format can store row ids as a column of a data file."""
    original = FIRST.manifest.fragments[1]
    file = DataFile("hidden.lance", (-3,), (0,), (2, 2))
    hidden = replace(original, files=(FILE, file), row_ids=LineageColumn(-3, file))
    manifest = replace(FIRST.manifest, version=2, fragments=FragmentList.of([hidden]))
    plan = plan_diff(None, manifest)
    assert plan.sequences == (LineageColumn(-3, file),)
    assert isinstance(original.row_ids, bytes)
    (inserted,) = diff(plan, {}, dict.fromkeys(plan.sequences, original.row_ids)).inserts
    assert inserted.offsets.tolist() == [0, 1, 2, 3, 4]


def test_a_returned_column_updates_unchanged_fragments() -> None:
    """The fragments are equal byte by byte; the column was missing in the schema between them."""
    older = Version(2, FIRST.rows, Schema(SCHEMA.fields[:1]))
    assert ids(older, version(3, *FIRST.rows)) == expect(update=range(15))
    plan = plan_diff(older.manifest, version(3, *FIRST.rows).manifest)
    assert diff(plan, column_backfills=False).num_changes == 0


def test_a_returned_column_updates_moved_rows() -> None:
    """The rows moved while the column was dropped, so a restore changes the values of all
    of them.
    """
    older = Version(
        2,
        [Rows(7, range(15), files=(replace(FILE, field_ids=(0, -2)),))],
        Schema(SCHEMA.fields[:1]),
    )
    newer = version(3, *FIRST.rows)
    assert ids(older, newer) == expect(update=range(15))
    assert diff(plan_diff(older.manifest, newer.manifest), column_backfills=False).num_changes == 0


def test_distant_restores_bring_back_columns() -> None:
    """Between distant versions, only the history knows that a restore brought values back."""
    bare = (replace(FILE, field_ids=(0, -2)),)
    moved = Version(2, [Rows(7, range(15), files=bare)], Schema(SCHEMA.fields[:1]))
    same = Version(2, FIRST.rows, Schema(SCHEMA.fields[:1]))
    newer = version(9, *FIRST.rows)
    nothing = np.empty(0, np.uint64)
    for older in moved, same:
        plan = plan_diff(older.manifest, newer.manifest)
        for history, backfills, num_changes in (
            (History(nothing, has_old_columns=True), True, 15),
            (History(nothing, has_old_columns=True), False, 0),
            (History(nothing), True, 0),
        ):
            changed = diff(plan, history=history, column_backfills=backfills)
            assert changed.num_changes == num_changes


def test_named_fields_are_the_new_ones() -> None:
    """A caller knows that a column has an id again that another column had before."""
    newer = version(2, *FIRST.rows)
    assert diff(plan_diff(FIRST.manifest, newer.manifest, {1})).num_changes == 15
    assert diff(plan_diff(FIRST.manifest, newer.manifest, set())).num_changes == 0


@pytest.mark.parametrize(
    ("name", "replaced", "updated"),
    [("y", False, []), ("y", True, [0, 1, 2]), ("x", False, [0, 1, 2])],
)
def test_only_added_values_are_backfills(name: str, replaced: bool, updated: list[int]) -> None:
    """A consumer that ignores new columns still needs replaced values, and those of a cast."""
    older = version(1, Rows(0, range(3)))
    column = replace(SCHEMA.fields[1], id=2, name=name)
    fields = (*SCHEMA.fields[: 1 if name == "x" else 2], column)
    added = DataFile("c.lance", (2,), (0,), (2, 2))
    files = (WITHOUT_X, NEW_COLUMN, added) if replaced else (FILE, added)
    newer = Version(2, [Rows(0, range(3), files=files)], Schema(fields))
    changed = diff(plan_diff(older.manifest, newer.manifest), column_backfills=False)
    assert [row for update in changed.updates for row in update.offsets.tolist()] == updated


def test_added_row_ids_change_nothing() -> None:
    """The rows are those of the version before if nothing else differs, as in a migration."""
    bare = [
        replace(fragment, row_ids=None, last_updated_at_versions=None)
        for fragment in FIRST.manifest.fragments
    ]
    older = replace(FIRST.manifest, fragments=FragmentList.of(bare), reader_feature_flags=0)
    newer = replace(FIRST.manifest, version=2)
    assert diff(plan_diff(older, newer)).num_changes == 0
    for other in (
        replace(newer, schema=Schema(SCHEMA.fields[:1])),
        replace(newer, fragments=FragmentList.of(FIRST.manifest.fragments[:1])),
    ):
        with pytest.raises(UnsupportedFeatureError, match="version 1 has no stable row ids"):
            plan_diff(older, other)


def test_history_decides_about_moved_rows() -> None:
    """Between distant versions equal stamps do not exclude a change that was undone, so the
    history decides.
    """
    newer = version(9, Rows(3, range(15)))
    plan = plan_diff(FIRST.manifest, newer.manifest)
    differences = diff(plan)
    assert (differences.num_changes, differences.is_ambiguous) == (0, True)
    differences = diff(plan, history=History(np.array([2, 4, 99], np.uint64)))
    assert [update.offsets.tolist() for update in differences.updates] == [[2, 4]]


def test_history_decides_about_unstamped_rows() -> None:
    """Between distant versions, only the history decides about the other rows of the fragment."""
    files = (WITHOUT_X, NEW_COLUMN)
    newer = version(9, Rows(0, range(10), [5] + [1] * 9, deleted=[0], files=files), FIRST.rows[1])
    plan = plan_diff(FIRST.manifest, newer.manifest)
    differences = diff(plan, newer.deleted, history=History(np.empty(0, np.uint64)))
    assert (
        len(differences.updates),
        [delete.offsets.tolist() for delete in differences.deletes],
    ) == (0, [[0]])


@pytest.mark.floors
def test_column_backfills_can_be_omitted() -> None:
    """A consumer may ignore new columns, but must still get rows that an update touched."""
    older = version(
        1, Rows(0, range(4), files=(replace(FILE, field_ids=(0,), column_indices=(0,)),))
    )
    older = Version(1, older.rows, Schema(SCHEMA.fields[:1]))
    newer = version(2, Rows(0, range(4), 2, files=(*older.rows[0].files, NEW_COLUMN)))
    plan = plan_diff(older.manifest, newer.manifest)
    assert diff(plan).num_changes == 4
    assert diff(plan, column_backfills=False).num_changes == 0
    touched = History(np.empty(0, np.uint64), np.array([1], np.uint64))
    differences = diff(plan, history=touched, column_backfills=False)
    assert [update.offsets.tolist() for update in differences.updates] == [[1]]


def test_all_changed_ids_are_listed() -> None:
    """A feed over many versions joins their changes by these ids."""
    newer = version(2, Rows(0, range(10), deleted=[2, 4, 6]), FIRST.rows[1], Rows(2, [4, 15], 2))
    differences = diff(plan_diff(FIRST.manifest, newer.manifest), newer.deleted)
    assert changed_row_ids(differences).tolist() == [2, 6, 15, 4]


def test_unstable_row_ids_are_refused() -> None:
    """Updates cannot be recognised without them, and the user must learn what to do."""
    plain = Version(2, FIRST.rows, flags=0)
    for older, newer in ((None, plain), (FIRST, plain), (Version(0, (), flags=0), FIRST)):
        with pytest.raises(UnsupportedFeatureError, match=r"no stable row ids.* Create .* migrate"):
            changes(older, newer)


def test_fragments_without_row_ids_are_corrupt() -> None:
    """The feature flag promises ids, and guessed ones would mix up rows."""
    bare = replace(FIRST.manifest.fragments[0], row_ids=None)
    manifest = replace(FIRST.manifest, fragments=FragmentList.of([bare]))
    with pytest.raises(CorruptDataError, match="no row ids"):
        diff(plan_diff(None, manifest))


def without_stamps(number: int, *rows: Rows) -> Manifest:
    """Return the manifest of a version whose writer has dropped all stamps."""
    manifest = version(number, *rows).manifest
    bare = [replace(part, last_updated_at_versions=None) for part in manifest.fragments]
    return replace(manifest, fragments=FragmentList.of(bare))


def test_dropped_stamps_change_no_row() -> None:
    """Rows without stamps read as version 1, but files that are the same have the same values."""
    older = version(3, Rows(0, range(10), [3] + [1] * 9), Rows(1, range(10, 15), 2))
    differences = diff(plan_diff(older.manifest, without_stamps(4, *older.rows)))
    assert (differences.num_changes, differences.drops_row_versions) == (0, True)
    differences = diff(
        plan_diff(without_stamps(3, *older.rows), replace(older.manifest, version=4))
    )
    assert (differences.num_changes, differences.drops_row_versions) == (0, False)


def test_moved_rows_without_stamps_are_updates() -> None:
    """Nothing shows that they have only moved, unless the version is a compaction."""
    older = version(3, Rows(0, range(10)), Rows(1, range(10, 15), 2))
    newer = without_stamps(4, Rows(0, range(10), deleted=[3]), older.rows[1], Rows(2, [3]))
    deleted = version(4, Rows(0, range(10), deleted=[3])).deleted
    plan = plan_diff(older.manifest, newer)
    differences = diff(plan, deleted)
    assert [update.fragment.id for update in differences.updates] == [2]
    assert (differences.unstamped.tolist(), differences.is_ambiguous) == ([3], True)
    assert diff(plan, deleted, history=NOTHING_HIDDEN).num_changes == 0
    incomplete = replace(NOTHING_HIDDEN, is_complete=False)
    assert diff(plan, deleted, history=incomplete).num_changes == 1


@pytest.mark.parametrize(("number", "num_changes"), [(4, 0), (9, 10)])
def test_written_stamps_count_in_a_step(number: int, num_changes: int) -> None:
    """A writer that has stamped moved rows has stamped all changed ones; several writers may have
    done one or the other.
    """
    older = without_stamps(3, Rows(0, range(10)))
    newer = version(number, Rows(1, range(10)))
    assert diff(plan_diff(older, newer.manifest)).num_changes == num_changes


@pytest.mark.parametrize("row_ids", [[5, 5], [6, 5, 6]])
def test_duplicate_live_ids_are_corrupt(row_ids: list[int]) -> None:
    """One of the two rows would be missing from the feed."""
    with pytest.raises(CorruptDataError, match="belongs to two live rows"):
        changes(None, version(1, Rows(0, row_ids[:1]), Rows(1, row_ids[1:])))


def test_deletions_beyond_the_end_are_corrupt() -> None:
    """Such a deletion file belongs to another fragment, and numpy would raise an error without a
    name.
    """
    newer = version(2, Rows(0, range(10), deleted=[3]), FIRST.rows[1])
    plan = plan_diff(FIRST.manifest, newer.manifest)
    with pytest.raises(CorruptDataError, match="row 10 of fragment 0"):
        diff(plan, {key: np.array([10], np.uint32) for key in newer.deleted})


@pytest.mark.parametrize("number", [1, 2])
def test_unordered_versions_are_refused(number: int) -> None:
    """A reversed interval would report inserts as deletes."""
    with pytest.raises(InvalidInputError, match=f"version {number} to version 1"):
        changes(version(number, *FIRST.rows), FIRST)


def test_plans_between_equal_tables_are_empty() -> None:
    """A version that changes only metadata must cost no reads."""
    newer = version(2, *FIRST.rows)
    assert plan_diff(FIRST.manifest, newer.manifest) == DiffPlan(
        1, 2, (), (), (), frozenset({0, 1}), frozenset(), False, (), ()
    )
    assert changes(FIRST, newer) == TableChanges(2)


def test_a_million_compacted_rows_are_followed() -> None:
    """Compactions write fragments of a million rows, in which single changes must be found."""

    def fragment(number: int, start: int, stop: int) -> Fragment:
        stamps = encode_row_versions(RowVersionSequence([1, stop - start - 1], [1, 2]))
        sequence = encode_row_ids(RowIdSequence.from_range(start, stop))
        return Fragment(number, (FILE,), stop - start, None, sequence, stamps)

    def manifest(number: int, *fragments: Fragment) -> Manifest:
        return replace(FIRST.manifest, version=number, fragments=FragmentList.of(fragments))

    half, end = 500_000, 1_000_000
    older = manifest(3, fragment(0, 0, half), fragment(1, half, end))
    assert diff(plan_diff(older, manifest(4, fragment(2, 0, end)))).num_changes == 1
    differences = diff(plan_diff(older, manifest(4, fragment(2, 1, end + 1))))
    (deleted,), (updated,), (inserted,) = (
        differences.deletes,
        differences.updates,
        differences.inserts,
    )
    assert (deleted.fragment.id, deleted.offsets.tolist()) == (0, [0])
    assert updated.offsets.tolist() == [0, half - 1]
    assert updated.addresses_before.tolist() == [1, 1 << 32]
    assert inserted.offsets.tolist() == [end - 1]


def make_history(seed: int) -> tuple[Version, Version]:
    """Two versions: fragments kept, killed in, revived in, stamped, moved, renumbered, dropped."""
    dice = random.Random(seed)
    next_id, rows = 0, []
    for number in range(dice.randint(0, 5)):
        size = dice.randint(1, 8)
        numbers = list(range(next_id, next_id + size))
        next_id += size
        if dice.random() < 0.3:
            dice.shuffle(numbers)
        deleted = [o for o in range(size) if dice.random() < 0.3]
        rows.append(Rows(number, numbers, [dice.randint(1, 4) for _ in numbers], deleted))
    older = Version(4, rows)
    survivors: list[Rows] = []
    loose: list[tuple[int, int]] = []
    for row in rows:
        choice = dice.choice(["keep", "kill", "revive", "stamp", "gone"])
        deleted = set(row.deleted)
        stamps = row.all_stamps
        if choice == "gone":
            deleted = set(range(len(row.row_ids)))
        elif choice == "kill":
            deleted |= {o for o in range(len(row.row_ids)) if dice.random() < 0.5}
        elif choice == "revive":
            deleted = {o for o in deleted if dice.random() < 0.5}
        elif choice == "stamp":
            stamps = [5 if dice.random() < 0.5 else stamp for stamp in stamps]
        loose += [
            (row_id, dice.choice([stamp, 5]))
            for row_id, (_, offset, stamp) in row.live().items()
            if offset in deleted and dice.random() < 0.7
        ]
        if choice != "gone":
            survivors.append(Rows(row.id, row.row_ids, stamps, sorted(deleted)))
    loose += [(next_id + n, 5) for n in range(dice.randint(0, 4))]
    dice.shuffle(loose)
    for number in range(9, 9 + dice.randint(1, 3)):
        part, loose = loose[: dice.randint(0, 9)], loose[9:]
        if part:
            survivors.append(Rows(number, [i for i, _ in part], [s for _, s in part]))
    return older, Version(5, survivors)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
def test_diffs_are_differences_of_live_rows(seed: int) -> None:
    """The rows of both versions as dictionaries are the model, over random histories."""
    older, newer = make_history(seed)
    before, after = older.live(), newer.live()
    result = ids(older, newer)
    assert sorted(result["insert"]) == sorted(after.keys() - before.keys())
    assert sorted(result["delete"]) == sorted(before.keys() - after.keys())
    assert sorted(result["update"]) == sorted(
        row_id for row_id in before.keys() & after.keys() if before[row_id][2] != after[row_id][2]
    )
