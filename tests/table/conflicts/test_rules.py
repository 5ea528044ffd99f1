import itertools
from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_stream.errors import IncompatibleConflictError, RetryableConflictError
from lance_stream.table.conflicts.rules import RULES, ConflictVerdict, check, verdict_on
from lance_stream.table.fragments.fragment import DataFile, DeletionFile, DeletionFileType, Fragment
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.manifest import BasePath
from lance_stream.table.operations.columns import DataOverlay, DataReplacement, Merge, Project
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.key_filters import BloomFilter, KeyExistenceFilter
from lance_stream.table.operations.moved_rows import (
    ReserveFragments,
    Rewrite,
    RewriteGroup,
    RewrittenIndex,
)
from lance_stream.table.operations.operation import OPERATIONS, Operation, UnknownOperation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update, UpdateMode
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import (
    Clone,
    CreateIndex,
    Restore,
    UpdateBases,
    UpdateMemWalState,
)
from tests.commit.tables import SCHEMA

YES, REBASE, RETRY, NO = (
    ConflictVerdict.YES,
    ConflictVerdict.REBASE,
    ConflictVerdict.RETRY,
    ConflictVerdict.NO,
)


def fragment(fragment_id: int, *, deleted: int = 0, file: str = "a") -> Fragment:
    files = (DataFile(file, (0, 1), (0, 1), (2, 2)),)
    deletion = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 1, deleted) if deleted else None
    return Fragment(fragment_id, files, 10, deletion)


def delete(*fragment_ids: int, whole: tuple[int, ...] = ()) -> Delete:
    return Delete(tuple(fragment(fragment_id, deleted=1) for fragment_id in fragment_ids), whole)


def upsert(
    *fragment_ids: int, whole: tuple[int, ...] = (), keys: tuple[int, ...] | None = None
) -> Update:
    return Update(
        removed_fragment_ids=whole,
        updated_fragments=tuple(fragment(fragment_id, deleted=1) for fragment_id in fragment_ids),
        new_fragments=(fragment(0),),
        inserted_rows=None if keys is None else KeyExistenceFilter((0,), keys),
    )


def remembering(keys: tuple[int, ...] | None) -> Update:
    """An update of which nothing comes but remembered deletes; None for more than can be listed."""
    any_key = BloomFilter(b"\xff" * 8, 64, 8, 0.1) if keys is None else None
    return Update(inserted_rows=KeyExistenceFilter((0,), keys, any_key))


def update_columns(*fragment_ids: int, fields: tuple[int, ...] = (1,)) -> Update:
    return Update(
        updated_fragments=tuple(fragment(fragment_id, file="b") for fragment_id in fragment_ids),
        fields_modified=fields,
        update_mode=UpdateMode.REWRITE_COLUMNS,
    )


def compact(*fragment_ids: int, index_too: bool = False) -> Rewrite:
    groups = (RewriteGroup(tuple(map(fragment, fragment_ids)), (fragment(99),)),)
    return Rewrite(groups, (RewrittenIndex(b"1" * 16, b"2" * 16),) if index_too else ())


def replace_data(fragment_id: int, *field_ids: int) -> DataReplacement:
    return DataReplacement(
        ((fragment_id, DataFile("n", field_ids, tuple(range(len(field_ids))), (2, 2))),)
    )


def index(
    name: str = "by_x", field_id: int = 1, covers: tuple[int, ...] | None = None
) -> CreateIndex:
    return CreateIndex((index_metadata(name, field_id, covers),))


def index_metadata(
    name: str = "by_x", field_id: int = 1, covers: tuple[int, ...] | None = None, uuid: int = 1
) -> IndexMetadata:
    bitmap = b"" if covers is None else BitMap(covers).serialize()
    return IndexMetadata(bytes([uuid]) * 16, (field_id,), name, 1, bitmap)


def drop_index(name: str = "by_x", uuid: int = 1) -> CreateIndex:
    return CreateIndex((), (index_metadata(name, uuid=uuid),))


def replace_index(name: str = "by_x", uuid: int = 2) -> CreateIndex:
    new = index_metadata(name, covers=(0,), uuid=uuid)
    return CreateIndex((new,), (index_metadata(name),))


def config(**entries: str | None) -> UpdateConfig:
    return UpdateConfig(config=MapUpdate(tuple(entries.items())))


def project(*field_ids: int, keeps_nullability: bool = True) -> Project:
    fields = tuple(field for field in SCHEMA.fields if field.id in field_ids)
    return Project(fields, keeps_nullability)


APPEND = Append((fragment(0),))
OVERWRITE = Overwrite((fragment(0),), SCHEMA)
MERGE = Merge((fragment(0),), SCHEMA, preserves_nullability=True)
RESTORE = Restore(1)
DROP = project(0)
FEW_KEYS = KeyExistenceFilter((0,), bloom=BloomFilter(b"\x00\x01", 16, 10, 0.1))
ANY_KEY = KeyExistenceFilter((0,), bloom=BloomFilter(b"\xff\xff", 16, 10, 0.1))


def changed(update: Update, *field_ids: int) -> Update:
    return replace(update, fields_for_preserving_frag_bitmap=field_ids)


MOVED = Update(
    updated_fragments=(fragment(1, deleted=1),),
    new_fragments=(replace(fragment(0), row_ids=encode_row_ids(RowIdSequence.from_range(10, 20))),),
)
OVERLAY = DataOverlay(((0, ()),))
COMPACTS_LOG = replace(upsert(0), compacted_sstables=(b"x",))
FIELD_METADATA = UpdateConfig(field_metadata={1: MapUpdate((("a", "b"),))})
SCHEMA_METADATA = UpdateConfig(schema_metadata=MapUpdate((("a", "b"),)))

ONE_PER_TYPE: dict[type[object], Operation] = {
    Append: APPEND,
    Delete: delete(0),
    Overwrite: OVERWRITE,
    CreateIndex: index(),
    Rewrite: compact(0),
    Merge: MERGE,
    Restore: RESTORE,
    ReserveFragments: ReserveFragments(2),
    Update: upsert(0),
    Project: DROP,
    UpdateConfig: config(a="1"),
    DataReplacement: replace_data(0, 1),
    UpdateMemWalState: UpdateMemWalState(),
    Clone: Clone(True, 1, "x"),
    UpdateBases: UpdateBases((BasePath(0, "/b"),)),
    DataOverlay: OVERLAY,
}


def test_every_operation_pair_has_a_rule() -> None:
    """A new operation must not be committed past others without a decision."""
    assert RULES.keys() == set(OPERATIONS.values())
    for rules in RULES.values():
        assert rules.keys() == set(OPERATIONS.values())


def test_every_operation_pair_gets_a_verdict() -> None:
    """A rule that fails on an operation would surface only in a race."""
    assert ONE_PER_TYPE.keys() == set(OPERATIONS.values())
    for ours, theirs in itertools.product(ONE_PER_TYPE.values(), repeat=2):
        assert isinstance(verdict_on(ours, theirs), ConflictVerdict)


# ours after theirs, as the reference was seen to do it
MEASURED = [
    (APPEND, APPEND, YES), (APPEND, delete(0), YES), (APPEND, upsert(0), YES),
    (APPEND, OVERWRITE, NO),
    (APPEND, RESTORE, NO), (APPEND, compact(0), YES), (APPEND, MERGE, YES), (APPEND, DROP, YES),
    (APPEND, config(a="1"), YES), (APPEND, index(), YES),
    (delete(0), APPEND, YES), (delete(0), delete(0), REBASE), (delete(0), delete(1), YES),
    (delete(0), upsert(0), REBASE), (delete(0), upsert(1), YES), (delete(0), OVERWRITE, NO),
    (delete(0), RESTORE, NO), (delete(0), compact(0), RETRY), (delete(0), compact(1), YES),
    (delete(0), MERGE, RETRY), (delete(0), DROP, YES), (delete(0), config(a="1"), YES),
    (delete(0), index(), YES),
    (upsert(0), APPEND, YES), (upsert(0), delete(0), REBASE), (upsert(0), upsert(1), YES),
    (upsert(0), upsert(0), REBASE), (upsert(0), OVERWRITE, NO), (upsert(0), RESTORE, NO),
    (upsert(0), compact(0), RETRY), (upsert(0), MERGE, RETRY), (upsert(0), index(), YES),
    (OVERWRITE, APPEND, YES), (OVERWRITE, delete(0), YES), (OVERWRITE, upsert(0), YES),
    (OVERWRITE, OVERWRITE, RETRY), (OVERWRITE, RESTORE, YES), (OVERWRITE, compact(0), YES),
    (OVERWRITE, MERGE, YES), (OVERWRITE, DROP, YES), (OVERWRITE, config(a="1"), YES),
    (OVERWRITE, index(), YES),
    (RESTORE, APPEND, YES), (RESTORE, OVERWRITE, YES), (RESTORE, RESTORE, YES),
    (RESTORE, compact(0), YES), (RESTORE, MERGE, YES), (RESTORE, DROP, YES),
    (RESTORE, config(a="1"), YES),
    (compact(0), APPEND, YES), (compact(0), delete(0), RETRY), (compact(0), delete(1), YES),
    (compact(0), upsert(0), RETRY), (compact(0), OVERWRITE, NO), (compact(0), RESTORE, NO),
    (compact(0), compact(0), RETRY), (compact(0), compact(1), YES), (compact(0), MERGE, RETRY),
    (compact(0), DROP, YES), (compact(0), config(a="1"), YES), (compact(0), index(), RETRY),
    (MERGE, APPEND, RETRY), (MERGE, delete(0), RETRY), (MERGE, upsert(0), RETRY),
    (MERGE, OVERWRITE, NO),
    (MERGE, RESTORE, NO), (MERGE, compact(0), RETRY), (MERGE, MERGE, RETRY), (MERGE, DROP, NO),
    (MERGE, config(a="1"), YES), (MERGE, index(), YES),
    (DROP, APPEND, YES), (DROP, delete(0), YES), (DROP, upsert(0), YES), (DROP, OVERWRITE, NO),
    (DROP, RESTORE, NO), (DROP, compact(0), YES), (DROP, MERGE, RETRY), (DROP, DROP, RETRY),
    (DROP, config(a="1"), YES), (DROP, index(), YES),
    (config(a="1"), APPEND, YES), (config(a="1"), OVERWRITE, YES), (config(a="1"), RESTORE, YES),
    (config(a="1"), config(a="2"), NO), (config(a="1"), config(b="2"), YES),
    (config(a="1"), config(a=None), NO), (config(a=None), config(a=None), YES),
    (index(), APPEND, YES), (index(), delete(0), YES), (index(), upsert(0), YES),
    (index(), OVERWRITE, NO),
    (index(), RESTORE, NO), (index(), compact(0), RETRY), (index(), MERGE, YES),
    (index(), config(a="1"), YES), (index(), index(), RETRY), (index(), index("by_id", 0), YES),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "verdict"), MEASURED)
def test_the_rules_equal_those_of_pylance(
    ours: Operation, theirs: Operation, verdict: ConflictVerdict
) -> None:
    """Writers of both must agree, or one overwrites what the other relies on."""
    assert verdict_on(ours, theirs) is verdict


# Its new fragments contain inserted rows: an update in place moves none.
WITH_NEW_ROWS = replace(update_columns(0, fields=(0,)), new_fragments=(fragment(9),))
WITHOUT_NEW_ROWS = replace(upsert(0), new_fragments=())
FEW_KEYS_INSERTED = replace(upsert(0), inserted_rows=FEW_KEYS)


def of_other_keys(fragment_id: int) -> Update:
    return replace(upsert(fragment_id), inserted_rows=KeyExistenceFilter((1,), (3, 4)))


def table_metadata(**entries: str | None) -> UpdateConfig:
    return UpdateConfig(table_metadata=MapUpdate(tuple(entries.items())))


FINER = [
    # a whole fragment that others changed, or whose rows others moved
    (delete(whole=(0,)), delete(0), RETRY),
    (delete(0), delete(whole=(0,)), RETRY),
    (delete(0), update_columns(0), RETRY),
    (upsert(0), update_columns(0), RETRY),
    (update_columns(0), delete(0), RETRY),
    (delete(0), replace_data(0, 1), RETRY),
    (delete(0), OVERLAY, YES),
    (compact(0), replace_data(0, 1), RETRY),
    (compact(0), OVERLAY, RETRY),
    # keys that both insert
    (upsert(0, keys=(1, 2)), upsert(1, keys=(2, 3)), RETRY),
    (upsert(0, keys=(1, 2)), upsert(1, keys=(3, 4)), YES),
    (upsert(0, keys=(1, 2)), upsert(1), RETRY),
    (upsert(0, keys=(1, 2)), APPEND, RETRY),
    # deletes that are remembered name their keys, too, without a row
    (upsert(0, keys=(1, 2)), remembering((2, 3)), RETRY),
    (upsert(0, keys=(1, 2)), remembering((3, 4)), YES),
    (upsert(0, keys=(1, 2)), remembering(()), YES),
    (upsert(0, keys=(1, 2)), remembering(None), RETRY),
    (remembering((2, 3)), upsert(0, keys=(1, 2)), RETRY),
    (remembering((2, 3)), APPEND, RETRY),
    (remembering((2, 3)), remembering((3, 4)), RETRY),
    (upsert(0), upsert(1, keys=(1,)), YES),
    (upsert(0, keys=()), upsert(1), YES),
    (upsert(0, keys=()), APPEND, YES),
    (upsert(0, keys=(1, 2)), MOVED, RETRY),  # its rows may have other keys now
    (upsert(0, keys=(1, 2)), changed(MOVED, 0, 1), RETRY),
    (upsert(0, keys=(1, 2)), changed(MOVED, 1), YES),
    (
        upsert(0, keys=(1, 2)),
        replace(changed(MOVED, 1), updated_fragments=(fragment(0, deleted=1),)),
        REBASE,
    ),
    (upsert(0, keys=(1, 2)), replace(changed(MOVED, 1), inserted_rows=FEW_KEYS), YES),
    (upsert(0, keys=(1, 2)), replace(changed(MOVED, 1), inserted_rows=ANY_KEY), RETRY),
    (upsert(0, keys=(1, 2)), update_columns(1, fields=(0,)), RETRY),
    (upsert(0, keys=(1, 2)), update_columns(1, fields=(1,)), YES),
    (upsert(0, keys=(1, 2)), update_columns(1, fields=()), RETRY),
    (upsert(0, keys=(1, 2)), update_columns(fields=(0,)), YES),
    (upsert(0, keys=(1, 2)), of_other_keys(1), RETRY),
    (upsert(0, keys=(1, 2)), changed(upsert(1), 1), RETRY),
    (FEW_KEYS_INSERTED, upsert(1, keys=(3,)), RETRY),
    (FEW_KEYS_INSERTED, remembering((3, 4)), RETRY),
    (FEW_KEYS_INSERTED, remembering(()), YES),
    # columns that others dropped, replaced, indexed
    (update_columns(0, fields=(1,)), project(0), RETRY),
    (update_columns(0, fields=(0,)), project(0), YES),
    (replace_data(0, 1), project(0), NO),
    (replace_data(0, 0), project(0), YES),
    (replace_data(0, 1), replace_data(0, 1), RETRY),
    (replace_data(0, 1), replace_data(0, 0), YES),
    (replace_data(0, 0), replace_data(0, 0), RETRY),
    (replace_data(0, 0), index(field_id=0), RETRY),
    (replace_data(0, 1), replace_data(1, 1), YES),
    (replace_data(0, 1), delete(0), YES),
    (replace_data(0, 1), delete(whole=(0,)), NO),
    (replace_data(0, 1), upsert(0), RETRY),
    (replace_data(0, 1), upsert(1), YES),
    (replace_data(0, 1), update_columns(0, fields=(1,)), RETRY),
    (replace_data(0, 1), update_columns(0, fields=(0,)), YES),
    (replace_data(0, 1), update_columns(1, fields=(1,)), YES),
    (replace_data(0, 1), WITH_NEW_ROWS, YES),
    (replace_data(0, 1), WITHOUT_NEW_ROWS, YES),
    (replace_data(0, 1, -2), project(0, 1), YES),
    (replace_data(0, 1), index(field_id=1), RETRY),
    (replace_data(0, 1), index(field_id=0), YES),
    (index(field_id=1), replace_data(0, 1), RETRY),
    (index(field_id=1), update_columns(0, fields=(1,)), RETRY),
    (index(field_id=1), update_columns(0, fields=(0,)), YES),
    (index(field_id=1), update_columns(0, fields=()), RETRY),
    (index(field_id=1, covers=(0,)), update_columns(0, fields=(1,)), REBASE),
    (index(field_id=1, covers=(1,)), update_columns(0, fields=(1,)), YES),
    (index(field_id=1, covers=(0,)), changed(MOVED, 1), YES),
    (index(field_id=1), project(0), RETRY),
    (index(field_id=0), project(0), YES),
    (index("__lance_mem_wal"), MERGE, RETRY),
    (MERGE, index("__lance_mem_wal"), RETRY),
    # indices: created, dropped, re-created, beside each other and beside rows that move
    (index(covers=(0,)), compact(0), RETRY),
    (index(covers=(0,)), compact(1), YES),
    (index("__lance_frag_reuse", covers=(1,)), compact(0), RETRY),
    (drop_index(), compact(0), YES),
    (compact(0), drop_index(), YES),
    (compact(0), index(covers=(0,)), YES),
    (compact(0), index("__lance_frag_reuse", covers=(1,)), RETRY),
    (compact(0, index_too=True), index(covers=(0,)), RETRY),
    (compact(0, index_too=True), index(covers=(1,)), YES),
    (drop_index(), drop_index(), YES),
    (index(), drop_index(), RETRY),
    (drop_index(), index(), RETRY),
    (index("by_id"), drop_index(), YES),
    (replace_index(), drop_index(), RETRY),
    (drop_index(), replace_index(), RETRY),
    (replace_index(), drop_index(uuid=7), YES),
    (replace_index(), replace_index(uuid=3), RETRY),
    # overlays
    (OVERLAY, delete(0), YES),
    (OVERLAY, delete(whole=(0,)), RETRY),
    (OVERLAY, upsert(0), RETRY),
    (OVERLAY, upsert(1), YES),
    (OVERLAY, update_columns(0), YES),
    (OVERLAY, WITH_NEW_ROWS, YES),
    (OVERLAY, WITHOUT_NEW_ROWS, YES),
    # write-ahead logs
    (UpdateMemWalState((b"x",)), upsert(0), YES),
    (upsert(0), UpdateMemWalState((b"x",)), YES),
    (UpdateMemWalState(), COMPACTS_LOG, RETRY),
    (COMPACTS_LOG, UpdateMemWalState(), NO),
    # nullability, both ways round
    (project(0, keeps_nullability=False), APPEND, RETRY),
    (APPEND, project(0, keeps_nullability=False), RETRY),
    (APPEND, Merge((), SCHEMA), RETRY),
    (delete(0), project(0, keeps_nullability=False), YES),
    # metadata against whole schemas, both ways round
    (FIELD_METADATA, MERGE, RETRY),
    (MERGE, SCHEMA_METADATA, RETRY),
    (FIELD_METADATA, RESTORE, NO),
    (RESTORE, SCHEMA_METADATA, NO),
    (FIELD_METADATA, OVERWRITE, NO),
    (SCHEMA_METADATA, SCHEMA_METADATA, NO),
    (FIELD_METADATA, FIELD_METADATA, NO),
    (FIELD_METADATA, SCHEMA_METADATA, YES),
    (SCHEMA_METADATA, FIELD_METADATA, YES),
    (UpdateConfig(old_schema_metadata={"a": "b"}), MERGE, RETRY),
    (UpdateConfig(old_schema_metadata={"a": "b"}), SCHEMA_METADATA, NO),
    (UpdateConfig(old_field_metadata={1: {"a": "b"}}), MERGE, RETRY),
    (UpdateConfig(old_field_metadata={1: {"a": "b"}}), FIELD_METADATA, NO),
    (UpdateConfig(schema_metadata=MapUpdate(())), MERGE, YES),
    (UpdateConfig(schema_metadata=MapUpdate((), replace=True)), MERGE, RETRY),
    (table_metadata(a="1"), config(a="1"), YES),
    (config(a="1"), table_metadata(a="1"), YES),
    (table_metadata(a="1"), UpdateConfig(table_metadata=MapUpdate((), replace=True)), NO),
    (UpdateConfig(table_metadata=MapUpdate((), replace=True)), table_metadata(a="1"), NO),
    (UpdateConfig(table_metadata=MapUpdate((("a", "1"),))),
     UpdateConfig(table_metadata=MapUpdate((("a", "2"),))), NO),
    (UpdateConfig(table_metadata=MapUpdate((("a", "1"),))),
     UpdateConfig(table_metadata=MapUpdate((("b", "2"),))), YES),
    # config
    (Overwrite((), SCHEMA, {"a": "1"}), config(a="2"), NO),
    (Overwrite((), SCHEMA, {"a": "1"}), config(b="2"), YES),
    (config(a="1"), Overwrite((), SCHEMA, {"a": "1"}), NO),
    (Overwrite((), SCHEMA, {"a": "1"}), Overwrite((), SCHEMA, {"a": "1"}), NO),
    (config(a="1"), UpdateConfig(config=MapUpdate((), replace=True)), NO),
    (UpdateConfig(config=MapUpdate((), replace=True)), config(a="1"), NO),
    (config(a=None), config(a="1"), NO),
    (config(a=None), config(a=None), YES),
    (config(a="1"), config(b="1"), YES),
    (config(a="1"), UpdateConfig(old_upserts={"a": "2"}), NO),
    (config(a="1"), UpdateConfig(old_delete_keys=("a",)), NO),
    # base paths
    (UpdateBases((BasePath(0, "/b"),)), UpdateBases((BasePath(0, "/b"),)), NO),
    (UpdateBases((BasePath(0, "/b"),)), UpdateBases((BasePath(0, "/c"),)), YES),
    (UpdateBases((BasePath(3, "/b"),)), UpdateBases((BasePath(3, "/c"),)), NO),
    (UpdateBases((BasePath(3, "/b", "n"),)), UpdateBases((BasePath(4, "/c", "m"),)), YES),
    (UpdateBases((BasePath(0, "/b", "n"),)), UpdateBases((BasePath(0, "/c", "n"),)), NO),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "verdict"), FINER)
def test_rules_can_examine_the_operations(
    ours: Operation, theirs: Operation, verdict: ConflictVerdict
) -> None:
    """Whether two operations conflict can depend on their fragments, columns and keys."""
    assert verdict_on(ours, theirs) is verdict


@pytest.mark.parametrize(
    "operation", ONE_PER_TYPE.values(), ids=lambda operation: type(operation).__name__
)
def test_unknown_operations_conflict_with_all(operation: Operation) -> None:
    """Nobody can tell what a later release's operation did to the rows."""
    unknown = UnknownOperation(199)
    assert verdict_on(operation, unknown) is NO
    assert verdict_on(unknown, operation) is NO


def test_missing_transactions_conflict_with_all() -> None:
    """Without its transaction a version may have done anything, so the operation is
    planned again.
    """
    for operation in ONE_PER_TYPE.values():
        with pytest.raises(RetryableConflictError, match="the operation of version 8 is unknown"):
            check(Transaction(7, "a", operation), None, 8)


def test_conflicts_name_operations_and_version() -> None:
    """The user has to find the other writer."""
    ours = Transaction(7, "a", delete(0))
    with pytest.raises(
        RetryableConflictError, match=r"Delete .* version 7, and the Rewrite of version 9"
    ) as retryable:
        check(ours, Transaction(8, "b", compact(0)), 9)
    assert retryable.value.version == 9
    with pytest.raises(IncompatibleConflictError, match=r"after the Restore of version 9"):
        check(ours, Transaction(8, "b", RESTORE), 9)
    assert check(ours, Transaction(8, "b", APPEND), 9) is YES
    assert check(ours, Transaction(8, "b", delete(0)), 9) is REBASE
