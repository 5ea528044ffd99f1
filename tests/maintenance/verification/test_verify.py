"""Every rule of `verify` finds its violations, and a valid table has none."""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_stream
from lance_stream import Dataset
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.maintenance.verification import verify
from lance_stream.maintenance.verification.verify import RULES
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.write_ahead_logs import FOLDER
from lance_stream.storage.locations import open_store
from lance_stream.table.config.ledger_entries import LedgerEntry, config_entries
from lance_stream.table.config.tombstones import CONFIG_KEY
from lance_stream.table.feature_flags import (
    DELETION_FILES,
    MIXED_FILE_VERSIONS,
    STABLE_ROW_IDS,
    flags_for,
)
from lance_stream.table.fragments.fragment import DataFile, DeletionFileType, Fragment
from lance_stream.table.indices import IndexFile, IndexMetadata, encode_index_section
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.table.manifest import (
    BasePath,
    DataFormat,
    FragmentList,
    Manifest,
    encode_manifest,
)
from lance_stream.table.operations.transaction import decode_transaction, encode_transaction
from lance_stream.table.paths import (
    TOMBSTONES_DIRECTORY,
    NamingScheme,
    data_file_path,
    deletion_file_path,
    index_folder,
    manifest_path,
    transaction_path,
)
from lance_stream.table.write_ahead_logs import WRITE_AHEAD_LOG
from lance_stream.verbs.append import append


@pytest.fixture
def ds() -> Dataset:
    """Two fragments of four rows, of which one has two deleted rows; made by a stream."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", pa.schema([("id", pa.int64()), ("x", pa.string())])
    )
    table = dataset.table
    for batch in range(2):
        ids = range(4 * batch, 4 * batch + 4)
        data = pa.table({"id": ids, "x": [str(id_) for id_ in ids]})
        table = append(table, data, PendingBatch.of("app", batch, "query")).table
    return Dataset(table).delete("id IN (1, 2)")


def test_valid_tables_have_no_findings(ds: Dataset) -> None:
    """A false alarm would teach users to ignore the verb."""
    for version in range(1, ds.version + 1):
        assert ds.checkout(version).verify() == []


def test_fields_without_columns_do_not_collide(ds: Dataset) -> None:
    """Index -1 marks a struct without a column, and a file may contain several of them."""
    fragment = ds.table.manifest.fragments[0]
    (file,) = fragment.files
    assert verify._problems_of(ds.table, fragment, replace(file, column_indices=(-1, -1))) == []
    (problem,) = verify._problems_of(ds.table, fragment, replace(file, column_indices=(1, 1)))
    assert problem == "several fields refer to the columns [1]"


@pytest.mark.parametrize(
    ("changes", "physical_rows", "problems"),
    [
        ({}, 4, []),
        ({}, 0, []),
        ({"size_bytes": 0}, 4, []),
        ({"column_indices": (0, -1)}, 4, []),
        ({"size_bytes": 5}, 4, [r"the file has \d+ bytes, but the manifest states 5"]),
        ({"file_version": (2, 0)}, 4, ["the file has version 2.2, but the manifest states 2.0"]),
        ({}, 5, ["the file has 4 rows, but its fragment 5"]),
        ({"column_indices": (0, 2)}, 4, [r"it has 2 columns, but fields refer to \[2\]"]),
        ({"column_indices": (-2, 1)}, 4, [r"it has 2 columns, but fields refer to \[-2\]"]),
        (
            {"column_indices": (5, 5), "file_version": (2, 0)},
            1,
            ["version 2.2", "but its fragment 1", r"refer to \[5, 5\]", r"the columns \[5\]"],
        ),
    ],
)
def test_every_file_problem_is_reported(
    ds: Dataset, changes: dict[str, Any], physical_rows: int, problems: list[str]
) -> None:
    """A reader may fail for any of them, and one must not hide the others."""
    fragment = ds.table.manifest.fragments[0]
    file = replace(fragment.files[0], **changes)
    fragment = replace(fragment, physical_rows=physical_rows)
    actual = verify._problems_of(ds.table, fragment, file)
    assert len(actual) == len(problems)
    for problem, expected in zip(actual, problems, strict=True):
        assert re.search(expected, problem)


def rewritten(ds: Dataset, **changed: Any) -> Dataset:
    """Put another manifest in place of the version's."""
    manifest = replace(ds.table.manifest, **changed)
    ds.table.store.write(manifest_path(ds.version), encode_manifest(manifest))
    return lance_stream.open_dataset(ds.uri)


def with_fragment(ds: Dataset, index: int, **changed: Any) -> Dataset:
    fragments: list[Fragment] = list(ds.table.manifest.fragments)
    fragments[index] = replace(fragments[index], **changed)
    return rewritten(ds, fragments=FragmentList.of(fragments))


def with_file(ds: Dataset, **changed: Any) -> Dataset:
    file = replace(first_file(ds), **changed)
    return with_fragment(ds, 0, files=(file,))


def first_file(ds: Dataset) -> DataFile:
    return ds.table.manifest.fragments[0].files[0]


def cut_short(ds: Dataset, path: str) -> Dataset:
    store = ds.table.store
    store.write(path, store.read(path)[:-1])
    return lance_stream.open_dataset(ds.uri)


def without(ds: Dataset, path: str) -> Dataset:
    ds.table.store.delete(path)
    return lance_stream.open_dataset(ds.uri)


def deletion_path(ds: Dataset) -> str:
    fragment = ds.table.manifest.fragments[0]
    assert fragment.deletion_file is not None
    return deletion_file_path(fragment.id, fragment.deletion_file)


def deletion_file_with(ds: Dataset, **changed: Any) -> Any:
    return replace(ds.table.manifest.fragments[0].deletion_file, **changed)


def other_transaction(ds: Dataset) -> Dataset:
    path = transaction_path(ds.table.manifest.transaction_file)
    transaction = decode_transaction(ds.table.store.read(path))
    other = replace(transaction, uuid=str(uuid.uuid4()))
    ds.table.store.write(path, encode_transaction(other))
    return lance_stream.open_dataset(ds.uri)


def without_transaction(ds: Dataset) -> Dataset:
    without(ds, transaction_path(ds.table.manifest.transaction_file))
    return rewritten(ds, inline_transaction=None)


def planned_on(ds: Dataset, version: int) -> Dataset:
    inline = ds.table.manifest.inline_transaction
    assert inline is not None
    transaction = replace(decode_transaction(inline), read_version=version)
    return rewritten(ds, inline_transaction=encode_transaction(transaction), transaction_file="")


def without_manifest(ds: Dataset) -> Dataset:
    ds.table.store.delete(manifest_path(ds.version))
    return ds


def named_by_both_schemes(ds: Dataset) -> Dataset:
    data = ds.table.store.read(manifest_path(1))
    ds.table.store.write(manifest_path(1, NamingScheme.V1), data)
    return ds


def row_ids(*ids: int) -> bytes:
    return encode_row_ids(RowIdSequence.from_array(np.array(ids, np.uint64)))


def versions(*stamps: int) -> bytes:
    return encode_row_versions(RowVersionSequence.from_array(np.array(stamps, np.uint64)))


def remembering(ds: Dataset) -> str:
    """Make the table remember a delete, and return the path of its file."""
    deletes = pa.table({"id": [77], "at": [1]})
    rules: dict[str, Any] = {"on": ["id"], "sequence_by": "at", "except_columns": ["at"]}
    newer = ds.upsert(deletes, delete_when="at = 1", tombstones="1 day", **rules)
    assert newer.verify() == []
    (file,) = ds.table.store.list(TOMBSTONES_DIRECTORY)
    return file.path


def index_of(
    field_id: int = 0,
    dataset_version: int = 1,
    name: str = "an index",
    files: tuple[IndexFile, ...] = (),
) -> bytes:
    index = IndexMetadata(bytes(16), (field_id,), name, dataset_version, files=files)
    return encode_index_section([index])


def with_write_ahead_log(ds: Dataset) -> Dataset:
    ds.table.store.write(f"{FOLDER}/a shard/1.lance", b"rows")
    return rewritten(ds, index_section=index_of(name=WRITE_AHEAD_LOG))


def named_transaction(ds: Dataset, name: str) -> Dataset:
    """Store the transaction under another name, with its uuid and read version in place."""
    old = ds.table.manifest.transaction_file
    version, _, rest = old.removesuffix(".txn").partition("-")
    new = name.format(version=version, uuid=rest)
    data = ds.table.store.read(transaction_path(old))
    ds.table.store.write(transaction_path(new), data)
    return rewritten(ds, transaction_file=new)


def with_deletion_file(ds: Dataset, *offsets: int, **changed: Any) -> Dataset:
    """Write a deletion file of its own for the first fragment."""
    file = deletion_file_with(ds, num_deleted_rows=len(offsets), id=7, **changed)
    file_type, data = DeletionFileType.BITMAP, BitMap(offsets).serialize()
    file = replace(file, file_type=file_type)
    ds.table.store.write(deletion_file_path(0, file), data)
    return with_fragment(ds, 0, deletion_file=file)


def without_rows(ds: Dataset) -> Dataset:
    """Empty the first fragment, in which no other rule has anything to check."""
    return with_fragment(
        ds,
        0,
        physical_rows=0,
        files=(),
        deletion_file=None,
        row_ids=row_ids(),
        created_at_versions=versions(),
        last_updated_at_versions=versions(),
    )


def schema_of(ds: Dataset, **changed: Any) -> Schema:
    first, second = ds.table.schema.fields
    return replace(ds.table.schema, fields=(first, replace(second, **changed)))


BREAKS: Mapping[str, list[Callable[[Dataset], Dataset]]] = {
    "features": [
        lambda ds: rewritten(ds, reader_feature_flags=STABLE_ROW_IDS),
        lambda ds: rewritten(ds, writer_feature_flags=STABLE_ROW_IDS),
    ],
    "data format": [
        lambda ds: rewritten(ds, data_format=DataFormat("parquet", "2.2")),
        lambda ds: rewritten(ds, data_format=DataFormat("lance", "9.9")),
    ],
    "schema": [
        lambda ds: rewritten(ds, schema=schema_of(ds, name="id")),
        lambda ds: rewritten(ds, schema=schema_of(ds, logical_type="strange")),
        lambda ds: rewritten(ds, schema=schema_of(ds, id=-5)),
    ],
    "timestamp": [lambda ds: rewritten(ds, timestamp_nanos=None)],
    "manifest names": [named_by_both_schemes, without_manifest],
    "transaction": [
        other_transaction,
        without_transaction,
        lambda ds: planned_on(ds, 9),
        lambda ds: planned_on(ds, ds.version),
        lambda ds: rewritten(ds, transaction_file="nonsense.txn"),
        lambda ds: named_transaction(ds, "nonsense.txn"),
        lambda ds: named_transaction(ds, "{version}-x{uuid}.txn"),
        lambda ds: named_transaction(ds, "9-{uuid}.txn"),
        lambda ds: rewritten(ds, inline_transaction=b"\xff\xff"),
        lambda ds: rewritten(ds, transaction_file="../outside.txn"),
    ],
    "indices": [
        lambda ds: rewritten(ds, index_section=b"\xff"),
        lambda ds: rewritten(ds, index_section=index_of(field_id=7)),
        lambda ds: rewritten(ds, index_section=index_of(dataset_version=9)),
        lambda ds: rewritten(ds, index_section=index_of(files=(IndexFile("page_data.lance", 1),))),
    ],
    "ledger": [
        lambda ds: rewritten(ds, config={"lance_stream.ledger.app": "no JSON"}),
        lambda ds: rewritten(ds, config=config_entries("app", LedgerEntry(3, "q", version=99))),
    ],
    "tombstones": [
        lambda ds: rewritten(ds, config={CONFIG_KEY: "no JSON"}),
        lambda ds: without(ds, remembering(ds)),
        lambda ds: cut_short(ds, remembering(ds)),
    ],
    "write-ahead log": [with_write_ahead_log],
    "fragment ids": [
        lambda ds: with_fragment(ds, 0, id=1),
        lambda ds: rewritten(ds, max_fragment_id=0),
    ],
    "fields of files": [
        lambda ds: with_file(ds, column_indices=(0,)),
        lambda ds: with_file(ds, file_version=(2, 1)),
        lambda ds: with_fragment(ds, 0, files=(first_file(ds), first_file(ds))),
        lambda ds: with_file(ds, file_version=(7, 7)),
    ],
    "stored paths": [
        lambda ds: with_file(ds, path="../data/x.lance"),
        lambda ds: with_file(ds, path="/etc/passwd"),
        lambda ds: with_file(ds, base_id=5),
        lambda ds: rewritten(ds, base_paths=(BasePath(5, "relative/folder"),)),
    ],
    "data files": [
        lambda ds: with_file(ds, size_bytes=5),
        lambda ds: with_file(ds, column_indices=(0, 7)),
        lambda ds: with_file(ds, column_indices=(0, 0)),
        lambda ds: with_fragment(ds, 1, physical_rows=5),
        lambda ds: cut_short(ds, data_file_path(first_file(ds).path)),
        lambda ds: without(ds, data_file_path(first_file(ds).path)),
    ],
    "deletion files": [
        lambda ds: cut_short(ds, deletion_path(ds)),
        lambda ds: without(ds, deletion_path(ds)),
        lambda ds: with_fragment(ds, 0, deletion_file=deletion_file_with(ds, num_deleted_rows=1)),
        lambda ds: with_deletion_file(ds),
        lambda ds: with_deletion_file(ds, 1, read_version=ds.version),
        lambda ds: with_deletion_file(ds, 1, read_version=ds.version + 1),
    ],
    "row counts": [
        lambda ds: with_fragment(ds, 0, files=()),
        lambda ds: with_fragment(ds, 0, physical_rows=0, files=()),
        without_rows,
        lambda ds: with_fragment(ds, 0, deletion_file=deletion_file_with(ds, num_deleted_rows=4)),
    ],
    "row ids": [
        lambda ds: with_fragment(ds, 0, row_ids=None),
        lambda ds: with_fragment(ds, 0, row_ids=row_ids(0, 1, 2)),
        lambda ds: with_fragment(ds, 0, row_ids=row_ids(0, 1, 1, 2)),
        lambda ds: with_fragment(ds, 0, row_ids=b"\xff"),
        lambda ds: rewritten(ds, next_row_id=7),
        lambda ds: rewritten(
            ds, reader_feature_flags=DELETION_FILES, writer_feature_flags=DELETION_FILES
        ),
    ],
    "row ids across fragments": [lambda ds: with_fragment(ds, 0, row_ids=row_ids(4, 1, 2, 3))],
    "row versions": [
        lambda ds: with_fragment(ds, 0, created_at_versions=versions(2, 2, 2)),
        lambda ds: with_fragment(ds, 0, last_updated_at_versions=versions(2, 2, 2, 99)),
        lambda ds: with_fragment(ds, 0, last_updated_at_versions=versions(2, 2, 2, 0)),
        lambda ds: with_fragment(ds, 0, last_updated_at_versions=versions(2, 2, 2, 1)),
        lambda ds: with_fragment(ds, 0, created_at_versions=b"\xff"),
        lambda ds: with_fragment(
            ds, 0, created_at_versions=None, last_updated_at_versions=versions(2, 2, 2, 99)
        ),
        lambda ds: with_fragment(
            ds, 0, created_at_versions=versions(2, 2, 2, 99), last_updated_at_versions=None
        ),
    ],
}


@pytest.mark.parametrize(
    ("rule", "damage"),
    [(rule, damage) for rule, damages in BREAKS.items() for damage in damages],
    ids=[f"{rule} {n}" for rule, damages in BREAKS.items() for n in range(len(damages))],
)
@pytest.mark.filterwarnings("ignore:.*write-ahead log")
def test_every_violation_is_found(
    ds: Dataset, rule: str, damage: Callable[[Dataset], Dataset]
) -> None:
    """A rule that cannot fire protects nothing, so each is shown at least one violation."""
    findings = damage(ds).verify()
    assert rule in {finding.rule for finding in findings}, list(map(str, findings))
    for finding in findings:
        assert finding.where
        assert finding.message


def test_every_rule_has_a_violation() -> None:
    """A new rule must come with a table that breaks it."""
    assert set(BREAKS) == set(RULES)


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: rewritten(ds, index_section=index_of(dataset_version=ds.version)),
        lambda ds: with_deletion_file(ds, 1, read_version=ds.version - 1),
        lambda ds: named_transaction(ds, "{version}-{uuid}-0123456789abcdef.txn"),
        lambda ds: rewritten(
            ds, config=config_entries("app", LedgerEntry(3, "q", version=ds.version))
        ),
        lambda ds: rewritten(ds, config=config_entries("app", LedgerEntry(3, "q"))),
    ],
)
def test_limits_are_no_violations(ds: Dataset, change: Callable[[Dataset], Dataset]) -> None:
    """The newest version may be named, and an older one may have planned a deletion."""
    assert list(map(str, change(ds).verify())) == []


def with_base_path(ds: Dataset, path: str, **changed: Any) -> Dataset:
    base = BasePath(5, path, is_dataset_root=True)
    reader, writer = flags_for(replace(ds.table.manifest, base_paths=(base,)))
    flags = {"reader_feature_flags": reader, "writer_feature_flags": writer}
    return rewritten(ds, base_paths=(base,), **flags, **changed)


def with_index_elsewhere(ds: Dataset) -> Dataset:
    """Declare an index whose files are below another path."""
    elsewhere = open_store(f"memory://{uuid.uuid4()}/elsewhere")
    elsewhere.write(f"{index_folder(bytes(16))}/page_data.lance", b"?")
    files = (IndexFile("page_data.lance", 1),)
    index = IndexMetadata(bytes(16), (0,), "an index", 1, files=files, base_id=5)
    return with_base_path(ds, elsewhere.uri, index_section=encode_index_section([index]))


def detached(ds: Dataset) -> Dataset:
    """Store the version as one beside the history, planned on another such version."""
    number = (1 << 63) + 5
    later = deletion_file_with(ds, read_version=number + 1)
    fragments = list(ds.table.manifest.fragments)
    fragments[0] = replace(fragments[0], deletion_file=later)
    ds.table.store.write(deletion_file_path(0, later), ds.table.store.read(deletion_path(ds)))
    inline = ds.table.manifest.inline_transaction
    assert inline is not None
    transaction = replace(decode_transaction(inline), read_version=number + 1)
    manifest = replace(
        ds.table.manifest,
        version=number,
        fragments=FragmentList.of(fragments),
        inline_transaction=encode_transaction(transaction),
        transaction_file="",
        index_section=index_of(dataset_version=number + 1),
    )
    ds.table.store.write(f"_versions/d{number}.manifest", encode_manifest(manifest))
    return lance_stream.open_dataset(ds.uri, number)


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: rewritten(ds, max_fragment_id=None),
        lambda ds: rewritten(ds, inline_transaction=None),
        lambda ds: with_base_path(ds, "/an/absolute/folder"),
        lambda ds: with_base_path(ds, "memory://another/table"),
        lambda ds: ds.shallow_clone(f"memory://{uuid.uuid4()}/clone"),
        lambda ds: ds.shallow_clone(f"memory://{uuid.uuid4()}/clone").delete("id = 0"),
        lambda ds: rewritten(ds, index_section=index_of(name=WRITE_AHEAD_LOG)),
        with_index_elsewhere,
        detached,
    ],
)
@pytest.mark.filterwarnings("ignore:.*write-ahead log")
def test_unusual_tables_are_valid(ds: Dataset, change: Callable[[Dataset], Dataset]) -> None:
    """Other writers leave out what is optional, and refer to files of other tables."""
    assert list(map(str, change(ds).verify())) == []


def test_versions_of_files_may_be_mixed(ds: Dataset) -> None:
    """The table's flags say whether; readers without the flag expect one version."""
    changed = with_file(ds, file_version=(2, 1))
    (finding,) = RULES["fields of files"](changed.table)
    assert finding[1] == "it has the file version 2.1, but the table has 2.2"
    flags = changed.table.manifest.reader_feature_flags | MIXED_FILE_VERSIONS
    manifest = replace(changed.table.manifest, reader_feature_flags=flags)
    assert list(RULES["fields of files"](replace(changed.table, manifest=manifest))) == []


@pytest.mark.parametrize(
    ("file_version", "size", "is_wrong"),
    [((2, 2), 5, True), ((2, 2), 0, False), ((0, 1), 5, False), ((0, 0), 5, False)],
)
def test_old_files_state_wrong_sizes(
    ds: Dataset, file_version: tuple[int, int], size: int, is_wrong: bool
) -> None:
    """Writers of 0.1 left out the footer, and no reader relies on the size."""
    fragment = ds.table.manifest.fragments[0]
    file = replace(fragment.files[0], size_bytes=size, file_version=file_version)
    problems = verify._problems_of(ds.table, fragment, file)
    assert ("but the manifest states 5" in str(problems)) == is_wrong


@pytest.mark.parametrize(
    ("num_rows", "num_deleted", "is_wrong"),
    [(4, 2, False), (0, 0, False), (4, None, False), (4, 1, True), (2, 2, True), (2, None, True)],
)
def test_counts_of_old_writers_are_compared(
    ds: Dataset, num_rows: int, num_deleted: int | None, is_wrong: bool
) -> None:
    """Lance 0.8 subtracted deleted rows twice, and older releases stated none."""
    first, second = ds.table.manifest.fragments
    assert first.deletion_file is not None
    deletions = (
        None if num_deleted is None else replace(first.deletion_file, num_deleted_rows=num_deleted)
    )
    stated = replace(first, physical_rows=num_rows, deletion_file=deletions)
    distrusted = FragmentList.of([stated, second])
    manifest = replace(ds.table.manifest, distrusted_fragments=distrusted)
    findings = list(verify._wrong_counts(replace(ds.table, manifest=manifest)))
    assert [where for where, _ in findings] == (["fragment 0"] if is_wrong else [])


def test_rewriting_a_manifest_changes_nothing(ds: Dataset) -> None:
    """The other tests damage manifests by rewriting them, which alone must cause no finding."""
    before: Manifest = ds.table.manifest
    again = rewritten(ds)
    assert again.table.manifest == before
    assert again.verify() == []
