from dataclasses import replace
from typing import Any

import pytest

from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.schema.fields import Field, Schema
from lance_stream.table.apply import APPLY, Commit, Creation, apply, check_may_write
from lance_stream.table.config import tombstones
from lance_stream.table.config.ledger_entries import LedgerEntry, config_entries
from lance_stream.table.feature_flags import (
    DELETION_FILES,
    MIXED_FILE_VERSIONS,
    STABLE_ROW_IDS,
    TABLE_CONFIG,
)
from lance_stream.table.fragments.fragment import (
    LINEAGE_FIELD_IDS,
    DeletionFile,
    DeletionFileType,
    Fragment,
    LineageColumn,
)
from lance_stream.table.lineage.row_ids import decode_row_ids, encode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.manifest import (
    WRITER_LIBRARY,
    BasePath,
    DataFormat,
    FragmentList,
    Manifest,
    WriterVersion,
)
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.operation import OPERATIONS, Operation
from lance_stream.table.operations.rows import Append, Delete, Overwrite
from lance_stream.table.operations.versions import Restore, UpdateBases
from tests.commit.tables import CREATION, SCHEMA, new_fragment

NOW = Commit(timestamp_nanos=1000)


def then(manifest: Manifest | None, operation: Operation, **arguments: Any) -> Manifest:
    return apply(
        manifest, operation, replace(NOW, **arguments), CREATION if manifest is None else None
    )


def table(*nums_rows: int, stable: bool = True) -> Manifest:
    operation = Overwrite(tuple(map(new_fragment, nums_rows)), SCHEMA)
    return apply(None, operation, NOW, replace(CREATION, stable_row_ids=stable))


def ids(fragment: Fragment) -> list[int]:
    assert isinstance(fragment.row_ids, bytes)
    return decode_row_ids(fragment.row_ids).to_array().tolist()


def stamps(fragment: Fragment) -> tuple[list[int], list[int]]:
    created, updated = fragment.created_at_versions, fragment.last_updated_at_versions
    assert isinstance(created, bytes)
    assert isinstance(updated, bytes)
    rows = fragment.physical_rows
    return (
        decode_row_versions(created, rows).to_array().tolist(),
        decode_row_versions(updated, rows).to_array().tolist(),
    )


def killing(fragment: Fragment, num_deleted: int) -> Fragment:
    return replace(
        fragment, deletion_file=DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, num_deleted)
    )


def test_new_tables_begin_with_version_1() -> None:
    """The specification numbers versions from 1, and row ids and fragment ids from 0."""
    manifest = table(3, 2)
    assert manifest.version == 1
    assert manifest.schema == SCHEMA
    assert manifest.data_format == DataFormat("lance", "2.2")
    assert [(fragment.id, ids(fragment), stamps(fragment)) for fragment in manifest.fragments] == [
        (0, [0, 1, 2], ([1, 1, 1], [1, 1, 1])),
        (1, [3, 4], ([1, 1], [1, 1])),
    ]
    assert (manifest.next_row_id, manifest.max_fragment_id) == (5, 1)
    assert manifest.reader_feature_flags == manifest.writer_feature_flags == STABLE_ROW_IDS


def test_empty_new_tables_use_no_ids() -> None:
    """The absence of a highest fragment id differs from id 0, which would be skipped."""
    manifest = table()
    assert (manifest.next_row_id, manifest.max_fragment_id) == (0, None)


def test_unstable_tables_get_no_row_ids() -> None:
    """Without the feature flag, readers compute ids from addresses and reject stored sequences."""
    manifest = then(table(3, stable=False), Append((new_fragment(2),)))
    assert manifest.reader_feature_flags == 0
    assert manifest.next_row_id == 0
    assert [
        (fragment.row_ids, fragment.created_at_versions) for fragment in manifest.fragments
    ] == [(None, None)] * 2


def test_appends_carry_old_fragments_as_bytes() -> None:
    """Unchanged fragments must keep fields that this release does not know, at no cost for
    decoding.
    """
    old = table(3, 2)
    carried = replace(old, fragments=FragmentList(old.fragments.raws))
    manifest = then(carried, Append((new_fragment(4),)))
    assert manifest.fragments.raws[:2] == old.fragments.raws
    assert carried.fragments.num_decoded == 0
    assert manifest.fragments.num_decoded == 1
    assert (manifest.fragments[2].id, ids(manifest.fragments[2])) == (2, [5, 6, 7, 8])
    assert stamps(manifest.fragments[2]) == ([2] * 4, [2] * 4)
    assert (manifest.next_row_id, manifest.max_fragment_id) == (9, 2)


def test_deleted_fragment_ids_stay_used() -> None:
    """A reused id would attach old deletion files and index coverage to the new rows."""
    old = then(table(3, 2), Delete((), (1,)))
    assert old.max_fragment_id == 1
    assert [fragment.id for fragment in then(old, Append((new_fragment(1),))).fragments] == [0, 2]


def test_new_base_paths_get_unused_ids() -> None:
    """Files refer to a base by its id, so a shared id would look for them in the wrong place."""
    bases = (BasePath(7, "/a"), BasePath(2, "/b"), BasePath(0, "/c"), BasePath(0, "/d"))
    result = then(table(3), UpdateBases(bases))
    assert [base.id for base in result.base_paths] == [7, 2, 8, 9]


def test_base_paths_and_names_are_unique() -> None:
    """Two names of one path, or two paths of one name, would make a later reference ambiguous."""
    start = then(table(3), UpdateBases((BasePath(0, "/a", "n"), BasePath(0, "/b"))))
    for repeated in BasePath(0, "/a", "m"), BasePath(9, "/c", "n"), BasePath(0, "/b"):
        with pytest.raises(InvalidInputError, match="already exists"):
            then(start, UpdateBases((repeated,)))
    with pytest.raises(InvalidInputError, match=r"'/d' \(None\) already exists"):
        then(start, UpdateBases((BasePath(0, "/d"), BasePath(0, "/d"))))
    result = then(start, UpdateBases((BasePath(0, "/c"), BasePath(0, "/d", "m"))))
    assert [base.path for base in result.base_paths] == ["/a", "/b", "/c", "/d"]


def test_only_the_named_version_is_restored() -> None:
    """The committer reads it; another one would bring back other rows."""
    first = table(3)
    start = then(first, Append((new_fragment(1),)))
    assert len(apply(start, Restore(1), NOW, restored=first).fragments) == 1
    for restored in None, start:
        with pytest.raises(InvalidInputError, match="version 1 is needed"):
            apply(start, Restore(1), NOW, restored=restored)
    with pytest.raises(InvalidInputError, match="has no stable row ids"):
        apply(start, Restore(1), NOW, restored=table(3, stable=False))


def test_tables_without_row_ids_are_restored() -> None:
    """Only stable row ids that the table has now could be lost."""
    first = table(3, stable=False)
    start = then(first, Append((new_fragment(1),)))
    assert apply(start, Restore(1), NOW, restored=first).fragments == first.fragments


def test_restores_use_no_id_twice() -> None:
    """Ids of rows that a restore removes, or that no version has used, are new afterwards."""
    empty = table()
    start = then(empty, Append((new_fragment(3),)))
    restored = apply(start, Restore(1), NOW, restored=empty)
    assert (restored.max_fragment_id, restored.next_row_id) == (0, 3)
    unused = apply(then(empty, Append(())), Restore(1), NOW, restored=empty)
    assert (unused.max_fragment_id, unused.next_row_id) == (None, 0)


@pytest.mark.parametrize(
    ("version", "files", "accepted"),
    [
        ("2.2", (2, 2), True),
        ("2.2", (2, 1), False),
        ("2.0", (2, 0), True),
        ("2.0", (2, 1), False),
        ("0.1", (0, 2), True),  # the format's number for files of 0.1
        ("0.1", (0, 1), True),
        ("0.1", (2, 0), False),
    ],
)
def test_files_have_the_tables_version(
    version: str, files: tuple[int, int], accepted: bool
) -> None:
    """Readers may take the version from the table, unless a flag says that its files are mixed."""
    old = replace(table(3), data_format=DataFormat("lance", version))
    fragment = new_fragment(1)
    new = replace(fragment, files=(replace(fragment.files[0], file_version=files),))
    flags = STABLE_ROW_IDS | MIXED_FILE_VERSIONS
    mixed = replace(old, reader_feature_flags=flags, writer_feature_flags=flags)
    assert then(mixed, Append((new,))).fragments[1].files == new.files
    if accepted:
        assert then(old, Append((new,))).fragments[1].files == new.files
        return
    major, minor = files
    with pytest.raises(InvalidInputError, match=rf"version {major}\.{minor}, but .* {version}"):
        then(old, Append((new,)))


@pytest.mark.parametrize("operation", [Append(()), Restore(1)])
def test_fields_in_two_files_are_repaired(operation: Operation) -> None:
    """Lance 0.10 wrote them; the repair is also due when a restore brings them back."""
    (fragment,) = table(3).fragments
    newest = replace(fragment.files[0], path="new.lance", field_ids=(1,), column_indices=(0,))
    twice = replace(fragment, files=(*fragment.files, newest))
    old = replace(
        table(3),
        fragments=FragmentList.of([twice]),
        writer_version=WriterVersion("lance", "0.10.5"),
    )
    start = replace(table(3), version=2) if isinstance(operation, Restore) else old
    restored = old if isinstance(operation, Restore) else None
    (repaired,) = apply(start, operation, NOW, restored=restored).fragments
    assert [file.field_ids for file in repaired.files] == [(0, -2), (1,)]


def test_other_programs_row_ids_are_checked() -> None:
    """A version of this library follows a checked one, so checking it again costs for nothing."""
    wrong = replace(table(3), next_row_id=2)
    for writer, is_checked in (
        (None, True),
        (WriterVersion("lance", "14.0.2"), True),
        (WriterVersion(WRITER_LIBRARY, "0.1.0"), False),
    ):
        old = replace(wrong, writer_version=writer)
        if is_checked:
            with pytest.raises(CorruptDataError, match="next row id 2, but a row has the id 2"):
                check_may_write(old)
        else:
            check_may_write(old)
    check_may_write(replace(table(3), next_row_id=3))
    check_may_write(replace(table(3, stable=False), next_row_id=0))


def test_scattered_row_ids_are_checked() -> None:
    """Most fragments have one range of ids; those of the others are decoded."""
    old = table(1, 3)
    for row_ids, largest in (
        (encode_row_ids([0, 2, 7]), 7),
        (encode_row_ids([7, 1, 3]), 7),
        (LineageColumn(LINEAGE_FIELD_IDS["row_ids"], None), 0),
    ):
        scattered = replace(old.fragments[1], row_ids=row_ids)
        fragments = old.fragments.replaced({1: scattered})
        check_may_write(replace(old, fragments=fragments, next_row_id=largest + 1))
        with pytest.raises(CorruptDataError, match=f"a row has the id {largest}"):
            check_may_write(replace(old, fragments=fragments, next_row_id=largest))


def test_unstated_highest_ids_are_found() -> None:
    """Old writers did not state it: the next fragment's id follows those that are there."""
    old = replace(table(3, 2), max_fragment_id=None)
    manifest = then(old, Append((new_fragment(1),)))
    assert manifest.max_fragment_id == manifest.fragments[2].id == 2


def test_deletes_change_only_deletion_files() -> None:
    """The planned fragment may be outdated, and other writers' files and row ids must survive."""
    old = table(3, 2)
    stale = replace(killing(old.fragments[0], 1), files=(), row_ids=None)
    manifest = then(old, Delete((stale,), (1,), "x"))
    assert list(manifest.fragments) == [killing(old.fragments[0], 1)]
    assert (
        manifest.reader_feature_flags
        == manifest.writer_feature_flags
        == STABLE_ROW_IDS | DELETION_FILES
    )
    assert (manifest.next_row_id, manifest.max_fragment_id) == (5, 1)


def test_fragments_without_live_rows_are_dropped() -> None:
    """Readers would otherwise open files that have nothing to show."""
    old = table(3, 2)
    manifest = then(old, Delete((killing(old.fragments[0], 3),), ()))
    assert [fragment.id for fragment in manifest.fragments] == [1]
    assert manifest.reader_feature_flags == STABLE_ROW_IDS


def test_deletes_in_missing_fragments_are_refused() -> None:
    """A delete that silently does nothing would leave the rows that it promised to remove."""
    old = table(3)
    for operation in (Delete((), (9,)), Delete((replace(old.fragments[0], id=9),), ())):
        with pytest.raises(InvalidInputError, match="fragment 9"):
            then(old, operation)


def test_overwrites_continue_ids_and_config() -> None:
    """Ids that start again at zero would make new rows look like old ones in the change feed."""
    old = replace(
        table(3, 2),
        config={"a": "1", "b": "2"},
        table_metadata={"t": "m"},
        index_section=b"",
        base_paths=(BasePath(1, "/b"),),
    )
    schema = Schema((replace(SCHEMA.fields[0], metadata={"k": b"v"}),), {"s": b"m"})
    manifest = then(old, Overwrite((new_fragment(4, schema),), schema, {"b": "3"}))
    assert manifest.schema == schema
    assert [
        (fragment.id, ids(fragment), stamps(fragment)[0]) for fragment in manifest.fragments
    ] == [(2, [5, 6, 7, 8], [2, 2, 2, 2])]
    assert manifest.config == {"a": "1", "b": "3"}
    assert manifest.table_metadata == {"t": "m"}
    assert manifest.base_paths == old.base_paths
    assert manifest.index_section is None
    assert manifest.data_format == old.data_format
    emptied = then(manifest, Overwrite((), schema))
    assert (len(emptied.fragments), emptied.next_row_id, emptied.max_fragment_id) == (0, 9, 2)


def test_overwrites_can_change_the_file_version() -> None:
    """All old files go away, so only an overwrite may do it, and only on request."""
    fragment = new_fragment(4)
    file = replace(fragment.files[0], file_version=(2, 0))
    operation = Overwrite((replace(fragment, files=(file,)),), SCHEMA)
    with pytest.raises(InvalidInputError, match=r"file version 2\.0"):
        then(table(3), operation)
    manifest = apply(table(3), operation, NOW, Creation(DataFormat("lance", "2.0")))
    assert manifest.data_format.version == "2.0"
    assert manifest.reader_feature_flags & STABLE_ROW_IDS


def test_only_creation_declares_base_paths() -> None:
    """Files of older versions refer to the declared paths by their ids."""
    operation = Overwrite((), SCHEMA, initial_bases=(BasePath(1, "/b"),))
    assert then(None, operation).base_paths == operation.initial_bases
    with pytest.raises(InvalidInputError, match="base paths"):
        then(table(3), operation)


def test_version_specific_fields_are_not_inherited() -> None:
    """A tag or transaction of the predecessor would describe the wrong version."""
    old = replace(
        table(3),
        tag="t",
        transaction_file="x.txn",
        inline_transaction=b"x",
        version_aux_data=9,
        writer_version=WriterVersion("other", "1"),
        index_section=b"i",
        branch="b",
        unknown=b"\xfa\x01\x00",
    )
    manifest = then(
        old, Append((new_fragment(1),)), transaction_file="y.txn", inline_transaction=b"y"
    )
    assert (manifest.tag, manifest.version_aux_data, manifest.writer_version) == ("", 0, None)
    assert (manifest.transaction_file, manifest.inline_transaction) == ("y.txn", b"y")
    assert (manifest.index_section, manifest.branch, manifest.unknown) == (b"i", "b", b"")


def test_versions_are_later_than_their_predecessor() -> None:
    """Time travel searches by timestamp, also when a writer's clock is behind."""
    old = table(3)
    assert then(old, Append(()), timestamp_nanos=5).timestamp_nanos == 1001
    assert then(old, Append(()), timestamp_nanos=5000).timestamp_nanos == 5000
    unstated = replace(old, timestamp_nanos=None)
    assert then(unstated, Append(()), timestamp_nanos=5).timestamp_nanos == 5


def test_config_entries_win_over_the_operation() -> None:
    """The sink's ledger entry must be in the version, whatever the operation says about its key."""
    operation = UpdateConfig(config=MapUpdate((("a", "1"), ("b", "1"))))
    manifest = then(table(3), operation, config_entries={"b": "2"})
    assert manifest.config == {"a": "1", "b": "2"}
    assert manifest.writer_feature_flags == STABLE_ROW_IDS | TABLE_CONFIG
    assert manifest.reader_feature_flags == STABLE_ROW_IDS


def test_config_and_metadata_change_by_key() -> None:
    """Keys that the change does not name belong to other writers."""
    old = replace(
        table(3), config={"a": "1", "b": "2"}, table_metadata={"a": "1", "b": "2"},
        schema=Schema(SCHEMA.fields, {"a": b"1", "b": b"2"}),
    )  # fmt: skip
    change = MapUpdate((("b", None), ("c", "3"), ("gone", None)))
    manifest = then(old, UpdateConfig(change, change, change, {1: change}))
    assert manifest.config == manifest.table_metadata == {"a": "1", "c": "3"}
    assert manifest.schema.metadata == {"a": b"1", "c": b"3"}
    assert [field.metadata for field in manifest.schema.fields] == [{}, {"c": b"3"}]
    assert manifest.fragments.raws == old.fragments.raws


def test_config_and_metadata_are_replaced_whole() -> None:
    """The specification lets an update replace a map, in which case nothing old may stay."""
    old = replace(
        table(3),
        config={"a": "1"},
        table_metadata={"a": "1"},
        schema=Schema(SCHEMA.fields, {"a": b"1"}),
    )
    change = MapUpdate((("c", "3"), ("d", None)), replace=True)
    manifest = then(old, UpdateConfig(change, change, change))
    assert manifest.config == manifest.table_metadata == {"c": "3"}
    assert manifest.schema.metadata == {"c": b"3"}


@pytest.mark.parametrize(
    "entry",
    [
        config_entries("flights", LedgerEntry(41, "q", 7)),
        tombstones.config_entries(tombstones.Tombstones(("id",), "seq", "int64")),
    ],
)
def test_replacing_the_config_keeps_ledger_entries(entry: dict[str, str]) -> None:
    """A replaced config must not make a stream write a batch twice; only naming the key removes
    it.
    """
    (key,) = entry
    old = replace(table(3), config={"a": "1", **entry})
    assert then(old, UpdateConfig(MapUpdate((), replace=True))).config == entry
    forgotten = UpdateConfig(MapUpdate(((key, None),)))
    assert then(old, forgotten).config == {"a": "1"}


def test_old_writers_spellings_are_understood() -> None:
    """Transactions of old writers state these changes in deprecated fields."""
    old = replace(table(3), config={"a": "1", "b": "2"}, schema=Schema(SCHEMA.fields, {"a": b"1"}))
    manifest = then(
        old,
        UpdateConfig(
            old_upserts={"c": "3"},
            old_delete_keys=("a",),
            old_schema_metadata={"n": "m"},
            old_field_metadata={0: {"k": "v"}},
        ),
    )
    assert manifest.config == {"b": "2", "c": "3"}
    assert manifest.schema.metadata == {"n": b"m"}
    assert manifest.schema.fields[0].metadata == {"k": b"v"}


def test_metadata_of_nested_fields_can_change() -> None:
    """Field ids address all levels of a schema, and an unknown id must not be ignored."""
    item = Field("item", "int32", 1)
    schema = Schema((Field("tags", "list", 0, children=(item,)),))
    manifest = then(
        replace(table(), schema=schema), UpdateConfig(field_metadata={1: MapUpdate((("k", "v"),))})
    )
    assert manifest.schema.fields[0].children == (replace(item, metadata={"k": b"v"}),)
    with pytest.raises(InvalidInputError, match="id 9"):
        then(manifest, UpdateConfig(field_metadata={9: MapUpdate()}))


def test_a_primary_key_is_set_once() -> None:
    """Other engines merge rows by the key, so a changed key would merge the wrong rows."""

    def key(value: str, name: str = "lance-schema:unenforced-primary-key") -> UpdateConfig:
        return UpdateConfig(field_metadata={0: MapUpdate(((name, value),))})

    manifest = then(table(3), key("true"))
    assert [field.primary_key_position for field in manifest.schema.fields] == [0, None]
    with pytest.raises(InvalidInputError, match="cannot be changed"):
        then(manifest, key("false"))
    other = UpdateConfig(field_metadata={0: MapUpdate((("k", "v"),))})
    assert then(manifest, other).schema.fields[0].primary_key_position == 0
    replaced = UpdateConfig(field_metadata={0: MapUpdate((("k", "v"),), replace=True)})
    with pytest.raises(InvalidInputError, match="cannot be changed"):
        then(manifest, replaced)
    numbered = then(table(3), key("2", "lance-schema:unenforced-primary-key:position"))
    assert numbered.schema.fields[0].primary_key_position == 2
    with pytest.raises(InvalidInputError, match="'maybe'"):
        then(table(3), key("maybe"))


def test_unwritable_tables_are_left_alone() -> None:
    """A writer that does not know a feature flag could violate what the flag promises."""
    old = replace(table(3), writer_feature_flags=1 << 40)
    with pytest.raises(UnsupportedFeatureError, match="cannot be written"):
        then(old, Append(()))


def test_detached_versions_have_no_successor() -> None:
    """They are not part of the table's history, and their row ids belong to other rows in it."""
    with pytest.raises(InvalidInputError, match=f"version {1 << 63} is detached"):
        then(replace(table(3), version=1 << 63), Append(()))


def test_unsupported_operations_are_refused_by_name() -> None:
    """An operation that cannot be applied must not become an empty version."""
    assert set(APPLY) <= set(OPERATIONS.values())
    for operation_class in set(OPERATIONS.values()) - set(APPLY):
        operation = object.__new__(operation_class)
        with pytest.raises(UnsupportedFeatureError, match=operation_class.__name__):
            then(table(3), operation)


def test_only_an_overwrite_creates_a_table() -> None:
    """It needs a data format, and no other operation can be a table's first."""
    with pytest.raises(NotFoundError, match="Append"):
        then(None, Append(()))
    with pytest.raises(InvalidInputError, match="data format"):
        apply(None, Overwrite((), SCHEMA), NOW)


def test_only_new_fragments_are_appended() -> None:
    """A fragment that has an id, no files or deleted rows did not come from a writer of
    new rows.
    """
    manifest = table(3)
    no_files = replace(new_fragment(3), files=())
    for fragment in (new_fragment(0), no_files, manifest.fragments[0], killing(new_fragment(3), 1)):
        with pytest.raises(InvalidInputError, match="new fragment"):
            then(manifest, Append((fragment,)))


def test_ids_do_not_overflow() -> None:
    """Ids that wrap around would repeat those of existing rows."""
    with pytest.raises(InvalidInputError, match="fragment ids"):
        then(
            replace(table(3), max_fragment_id=(1 << 32) - 2),
            Append((new_fragment(1), new_fragment(1))),
        )
    with pytest.raises(InvalidInputError, match="row ids"):
        then(replace(table(3), next_row_id=(1 << 64) - 3), Append((new_fragment(4),)))


def test_an_append_decodes_no_old_fragments() -> None:
    """An append to a table with many fragments must not become slower with their number."""
    (raw,) = table(3).fragments.raws
    old = replace(table(3), fragments=FragmentList([raw] * 20_000), max_fragment_id=19_999)
    manifest = then(old, Append((new_fragment(1),)))
    assert len(manifest.fragments) == 20_001
    assert manifest.fragments.num_decoded == 1
