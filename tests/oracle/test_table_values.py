"""Manifests, transactions, row ids, versions and deletion files: pylance's and ours, both ways."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import transaction_pb2
from lance_stream.errors import BadDataError
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.table import feature_flags, paths
from lance_stream.table.fragments.deletion_vectors import (
    decode_deletion_vector,
    encode_deletion_vector,
)
from lance_stream.table.fragments.fragment import DeletionFile, Fragment, LineageColumn
from lance_stream.table.indices import decode_index_section, encode_index_section
from lance_stream.table.lineage.row_addresses import FragmentRows, RowIdIndex, pack_addresses
from lance_stream.table.lineage.row_ids import decode_row_ids, encode_row_ids
from lance_stream.table.lineage.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)
from lance_stream.table.manifest import FragmentList, Manifest, decode_manifest, encode_manifest
from lance_stream.table.operations.columns import DataReplacement, Merge, Project
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.transaction import decode_transaction, encode_transaction
from lance_stream.table.operations.versions import Clone, CreateIndex, Restore

lance = pytest.importorskip("lance")
pytestmark = pytest.mark.oracle

LINEAGE = ["_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(start: int, stop: int, **more: Any) -> pa.Table:
    return pa.table({"id": range(start, stop), "x": [float(i) for i in range(start, stop)], **more})


def write_history(uri: str) -> None:
    """A table that has seen every verb of pylance that leaves its mark in the metadata."""
    ds = lance.write_dataset(
        rows(0, 12_000), uri, enable_stable_row_ids=True, max_rows_per_file=6000
    )
    ds.delete("id % 100 = 7")
    ds.delete("id < 5990 AND id > 100")
    ds.insert(rows(12_000, 13_000))
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.concat_tables([rows(6100, 6200), rows(9000, 9001), rows(20_000, 20_100)])
    )
    ds.update({"x": "x + 1"}, where="id % 7 = 3")
    ds.update_config({"a.b": "c", "lance.auto_cleanup.interval": "1000"})
    ds.update_schema_metadata({"owner": "me"})
    ds.update_field_metadata({"x": {"unit": "m"}})
    ds.create_scalar_index("id", "BTREE")
    ds.add_columns({"y": "x * 2"})
    ds.add_columns([pa.field("z", pa.string())])
    ds.optimize.compact_files()
    ds.delete("id % 2 = 0")
    ds.drop_columns(["y"])
    ds.alter_columns({"path": "z", "name": "renamed"})
    lance.dataset(uri, version=4).restore()
    ds = lance.dataset(uri)
    lance.write_dataset(
        rows(0, 10), uri, mode="append", transaction_properties={"app": "me", "": ""}
    )
    lance.write_dataset(rows(5, 8, w=["a", None, "c"]), uri, mode="overwrite")
    lance.dataset(uri).truncate_table()
    lance.write_dataset(rows(5, 8, w=["a", None, "c"]), uri, mode="append")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history") / "t.lance"
    write_history(str(folder))
    return folder


def manifests(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    for path in sorted((folder / "_versions").glob("*.manifest"), reverse=True):
        yield path, decode_manifest(path.read_bytes())


def deleted_rows(folder: Path, fragment: Fragment) -> np.ndarray:
    file = fragment.deletion_file
    if file is None:
        return np.empty(0, np.uint32)
    data = (folder / paths.deletion_file_path(fragment.id, file)).read_bytes()
    return decode_deletion_vector(
        data, file.file_type, fragment.physical_rows, file.num_deleted_rows
    )


def lineage(folder: Path, manifest: Manifest) -> list[np.ndarray]:
    """The four lineage columns of a version's live rows, in scan order."""
    parts: list[list[np.ndarray]] = []
    for fragment in manifest.fragments:
        live = np.delete(np.arange(fragment.physical_rows), deleted_rows(folder, fragment))
        assert isinstance(fragment.row_ids, bytes)
        sequences = [
            decode_row_ids(fragment.row_ids, fragment.physical_rows).take(live),
            pack_addresses(fragment.id, live),
        ]
        for stored in (fragment.created_at_versions, fragment.last_updated_at_versions):
            assert stored is None or isinstance(stored, bytes)
            sequences.append(decode_row_versions(stored, fragment.physical_rows).take(live))
        parts.append(sequences)
    empty = [[np.empty(0, np.uint64)] * len(LINEAGE)]
    return [np.concatenate(column) for column in zip(*(empty + parts), strict=True)]


def test_every_version_reads_as_in_pylance(history: Path) -> None:
    """A history of all operations has every field that pylance writes."""
    versions = {version["version"]: version for version in lance.dataset(str(history)).versions()}
    seen = []
    for path, manifest in manifests(history):
        ds = lance.dataset(str(history), version=manifest.version)
        seen.append(manifest.version)
        assert paths.parse_manifest_name(path.name) == (manifest.version, paths.NamingScheme.V2)
        assert to_arrow(manifest.schema).equals(ds.schema, check_metadata=True)
        assert manifest.config == ds.config()
        assert manifest.data_format.version == ds.data_storage_version == "2.2"
        assert manifest.unknown == b""
        stamp = versions[manifest.version]["timestamp"].astimezone().timestamp()
        assert manifest.timestamp_nanos is not None
        assert abs(manifest.timestamp_nanos / 1e9 - stamp) < 1e-5
        theirs = [fragment.metadata for fragment in ds.get_fragments()]
        assert list(manifest.fragments.ids) == [entry.id for entry in theirs]
        for ours, other in zip(manifest.fragments, theirs, strict=True):
            assert ours.physical_rows == other.physical_rows
            assert ours.num_live_rows == other.num_rows
            assert [(f.path, list(f.field_ids), list(f.column_indices)) for f in ours.files] == [
                (f.path, f.fields, f.column_indices) for f in other.files
            ]
        assert manifest.fragments.num_live_rows == ds.count_rows()
        feature_flags.check_writable(manifest)
    assert seen == sorted(versions)
    assert len(seen) > 20


def test_row_ids_and_versions_are_pylances(history: Path) -> None:
    """Change feeds of both programs rest on these values."""
    kinds = set()
    for _, manifest in manifests(history):
        ds = lance.dataset(str(history), version=manifest.version)
        theirs = ds.to_table(columns=LINEAGE)
        ours = lineage(history, manifest)
        for name, column in zip(LINEAGE, ours, strict=True):
            assert column.tolist() == theirs[name].to_pylist(), (manifest.version, name)
        index = RowIdIndex(
            FragmentRows(
                fragment.id, decode_row_ids(fragment.row_ids), deleted_rows(history, fragment)
            )
            for fragment in manifest.fragments
        )
        addresses, exists = index.find(ours[0])
        assert exists.all()
        assert addresses.tolist() == ours[1].tolist()
        assert not index.find([manifest.next_row_id])[1].any()
        kinds |= {
            fragment.deletion_file.file_type
            for fragment in manifest.fragments
            if fragment.deletion_file
        }
    assert len(kinds) == 2


def test_computed_flags_are_those_pylance_wrote(history: Path) -> None:
    """A missing flag lets old readers misread a table, one too many excludes them."""
    written = set()
    for _, manifest in manifests(history):
        stored = (manifest.reader_feature_flags, manifest.writer_feature_flags)
        assert feature_flags.flags_for(manifest) == stored
        written.add(stored)
    assert len(written) > 2


def test_transactions_are_rewritten_without_loss(history: Path) -> None:
    """Other writers check their operations against the stored ones."""
    kinds = set()
    for _, manifest in manifests(history):
        data = (history / paths.transaction_path(manifest.transaction_file)).read_bytes()
        assert manifest.inline_transaction == data
        transaction = decode_transaction(data)
        again = encode_transaction(transaction)
        parse = transaction_pb2.Transaction.FromString
        assert parse(again) == parse(data)
        assert decode_transaction(again) == transaction
        stated = paths.parse_transaction_file_name(manifest.transaction_file)
        assert stated == (transaction.read_version, transaction.uuid)
        kinds.add(type(transaction.operation))
    assert kinds == {
        *(Append, Delete, Overwrite, CreateIndex),
        *(Rewrite, Merge, Restore, ReserveFragments),
        *(Update, Project, UpdateConfig),
    }


def test_transaction_properties_equal_pylances(history: Path) -> None:
    """The uuid and properties identify a commit after a lost answer."""
    ds = lance.dataset(str(history))
    num_compared = 0
    for _, manifest in manifests(history):
        assert manifest.inline_transaction is not None
        ours = decode_transaction(manifest.inline_transaction)
        if isinstance(ours.operation, Rewrite):
            continue  # pylance cannot show one that rewrote an index
        num_compared += 1
        theirs = ds.read_transaction(manifest.version)
        assert ours.uuid == theirs.uuid
        assert ours.read_version == theirs.read_version
        assert ours.properties == (theirs.transaction_properties or {})
    assert num_compared > 3


def test_index_sections_read_as_pylance_lists(history: Path) -> None:
    """Indices of pylance must survive the commits of this package."""
    indexed = [manifest for _, manifest in manifests(history) if manifest.index_section]
    assert indexed
    for manifest in indexed:
        ds = lance.dataset(str(history), version=manifest.version)
        assert manifest.index_section is not None
        ours = decode_index_section(manifest.index_section)
        theirs = ds.describe_indices()
        assert [entry.name for entry in ours] == [entry.name for entry in theirs]
        assert decode_index_section(encode_index_section(ours)) == ours


def test_rewritten_manifests_are_unchanged_for_pylance(history: Path, tmp_path: Path) -> None:
    """Each dataclass must write all that it has read."""
    copy = tmp_path / "t.lance"
    shutil.copytree(history, copy)
    for path, manifest in manifests(copy):
        assert manifest.inline_transaction is not None
        transaction = encode_transaction(decode_transaction(manifest.inline_transaction))
        (copy / paths.transaction_path(manifest.transaction_file)).write_bytes(transaction)
        # Everything through its dataclass: nothing is carried over as bytes.
        again = replace(
            manifest,
            fragments=FragmentList.of(list(manifest.fragments)),
            inline_transaction=transaction,
        )
        if manifest.index_section is not None:
            indices = decode_index_section(manifest.index_section)
            again = replace(again, index_section=encode_index_section(indices))
        path.write_bytes(encode_manifest(again))
    for version in range(1, lance.dataset(str(history)).version + 1):
        one, other = (lance.dataset(str(value), version=version) for value in (history, copy))
        other.validate()
        assert one.to_table(columns=[*one.schema.names, *LINEAGE]) == other.to_table(
            columns=[*one.schema.names, *LINEAGE]
        )
        assert one.versions() == other.versions()
        assert one.config() == other.config()
        assert [i.name for i in one.describe_indices()] == [
            i.name for i in other.describe_indices()
        ]
        assert one.to_table(filter="id = 6150") == other.to_table(filter="id = 6150")
    lance.write_dataset(rows(0, 3, w=["a", "b", "c"]), str(copy), mode="append")
    assert lance.dataset(str(copy)).count_rows() == lance.dataset(str(history)).count_rows() + 3


def publish(folder: Path, manifest: Manifest) -> Any:
    """Write a version beside those that are there, and open it with pylance."""
    target = folder / paths.manifest_path(manifest.version)
    target.write_bytes(encode_manifest(manifest))
    ds = lance.dataset(str(folder), version=manifest.version)
    ds.validate()
    return ds


def new_table(tmp_path: Path, num_rows: int) -> tuple[Path, Manifest]:
    folder = tmp_path / "t.lance"
    lance.write_dataset(rows(0, num_rows), str(folder), enable_stable_row_ids=True)
    ((_, manifest),) = manifests(folder)
    return folder, manifest


@pytest.mark.parametrize("num_deleted", [1, 4999, 5000, 9999])
def test_pylance_reads_our_deletion_files(tmp_path: Path, num_deleted: int) -> None:
    """Both forms, Arrow and bitmap, must hide exactly the deleted rows."""
    folder, manifest = new_table(tmp_path, 10_000)
    deleted = np.sort(np.random.default_rng(num_deleted).choice(10_000, num_deleted, replace=False))
    file_type, data = encode_deletion_vector(deleted)
    file = DeletionFile(file_type, 1, 77, num_deleted)
    path = folder / paths.deletion_file_path(0, file)
    path.parent.mkdir()
    path.write_bytes(data)
    fragment = replace(manifest.fragments[0], deletion_file=file)
    newer = replace(manifest.successor(), fragments=FragmentList.of([fragment]))
    reader, writer = feature_flags.flags_for(newer)
    newer = replace(newer, reader_feature_flags=reader, writer_feature_flags=writer)
    ds = publish(folder, newer)
    assert ds.to_table()["id"].to_pylist() == sorted(set(range(10_000)) - set(deleted.tolist()))
    ds.delete("id = -1 OR x < 0")
    assert lance.dataset(str(folder)).count_rows() == 10_000 - num_deleted


@pytest.mark.parametrize(
    "ids",
    [
        range(7, 307),
        sorted({*range(304)} - {100, 150, 200, 290}),
        range(0, 900, 3),
        range(0, 300_000, 1000),
        [(i * 7919) % 100_003 for i in range(300)],
        [i << 40 for i in range(300)],
        [*range(1000, 1100), *range(100), *range(5000, 5300, 3)],
        [*range(0, 2600, 13), *range(9000, 9100)],
    ],
)
def test_pylance_reads_our_lineage_sequences(tmp_path: Path, ids: list[int]) -> None:
    """Each kind of segment must mean the same ids to pylance."""
    folder, manifest = new_table(tmp_path, 300)
    created = [1 + (i // 20) % 2 for i in range(300)]
    updated = [2 + i % 3 for i in range(300)]
    fragment = replace(
        manifest.fragments[0],
        row_ids=encode_row_ids(list(ids)),
        created_at_versions=encode_row_versions(RowVersionSequence.from_array(created)),
        last_updated_at_versions=encode_row_versions(RowVersionSequence.from_array(updated)),
    )
    newer = replace(
        manifest.successor(), fragments=FragmentList.of([fragment]), next_row_id=max(ids) + 1
    )
    table = publish(folder, newer).to_table(columns=LINEAGE)
    assert table["_rowid"].to_pylist() == list(ids)
    assert table["_row_created_at_version"].to_pylist() == created
    assert table["_row_last_updated_at_version"].to_pylist() == updated
    taken = lance.dataset(str(folder))._take_rows([ids[5], ids[299]])
    assert taken["id"].to_pylist() == [5, 299]


@pytest.mark.parametrize("stable", [True, False])
def test_unstated_row_versions_read_as_1(tmp_path: Path, stable: bool) -> None:
    """The specification defines missing stamps as version 1."""
    folder = tmp_path / "t.lance"
    lance.write_dataset(rows(0, 5), str(folder), enable_stable_row_ids=stable)
    ((_, manifest),) = manifests(folder)
    fragment = replace(
        manifest.fragments[0], created_at_versions=None, last_updated_at_versions=None
    )
    ds = publish(folder, replace(manifest.successor(), fragments=FragmentList.of([fragment])))
    assert ds.to_table(columns=LINEAGE[2:]).to_pydict() == dict.fromkeys(LINEAGE[2:], [1] * 5)
    assert decode_row_versions(None, 5).to_array().tolist() == [1] * 5
    assert feature_flags.has_stable_row_ids(manifest) == stable


def test_spilled_row_lineage_is_flagged(tmp_path: Path) -> None:
    """Old readers must refuse tables whose row ids lie in data files."""
    folder = tmp_path / "t.lance"
    ds = lance.write_dataset(rows(0, 1000), str(folder), enable_stable_row_ids=True)
    ds.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"})
    ds.merge_insert("id").when_matched_update_all().execute(
        pa.table({"id": range(0, 1000, 3), "x": [1.0] * 334})
    )
    *_, (_, newest) = manifests(folder)
    assert any(isinstance(fragment.row_ids, LineageColumn) for fragment in newest.fragments)
    feature_flags.check_writable(newest)
    assert feature_flags.flags_for(newest) == (2 + 2048 + 1, 2 + 2048 + 8 + 1)
    assert feature_flags.flags_for(newest) == (
        newest.reader_feature_flags,
        newest.writer_feature_flags,
    )


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_stored_file_version_spellings_are_known(tmp_path: Path, version: str) -> None:
    """Manifests and data files spell the same version differently."""
    folder = tmp_path / "t.lance"
    lance.write_dataset(rows(0, 5), str(folder), data_storage_version=version)
    ((_, manifest),) = manifests(folder)
    (file,) = manifest.fragments[0].files
    spelling = {"legacy": ("0.1", (0, 2))}.get(version) or (
        version,
        tuple(int(part) for part in version.split(".")),
    )
    assert (manifest.data_format.version, file.file_version) == spelling


def test_v1_and_detached_names_are_distinguished(tmp_path: Path) -> None:
    """Detached versions are never the newest, although their numbers are huge."""
    folder = tmp_path / "t.lance"
    lance.write_dataset(rows(0, 5), str(folder), enable_v2_manifest_paths=False)
    lance.write_dataset(rows(0, 5), str(folder), mode="append")
    names = [path.name for path in (folder / "_versions").iterdir()]
    assert paths.scheme_of(names) is paths.NamingScheme.V1
    parsed = sorted(filter(None, map(paths.parse_manifest_name, names)))
    assert [version.version for version in parsed] == [1, 2]

    other = tmp_path / "u.lance"
    ds = lance.write_dataset(rows(0, 5), str(other))
    detached = lance.LanceDataset.commit(
        ds,
        lance.LanceOperation.Append(lance.fragment.write_fragments(rows(0, 2), ds)),
        detached=True,
        read_version=1,
    )
    names = [path.name for path in (other / "_versions").iterdir()]
    assert paths.is_detached(detached.version)
    assert paths.manifest_name(detached.version) in names
    assert paths.scheme_of(names) is paths.NamingScheme.V2
    data = (other / paths.manifest_path(detached.version)).read_bytes()
    assert decode_manifest(data).version == detached.version


def test_damaged_pylance_manifests_are_bad_data(history: Path) -> None:
    """Callers handle BadDataError only, and some damage cannot be noticed."""
    random = np.random.default_rng(3)
    largest = max((path for path, _ in manifests(history)), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    refused = 0
    for position in random.integers(0, len(data), 300).tolist():
        damaged = bytearray(data)
        damaged[position] ^= int(random.integers(1, 256))
        for value in (bytes(damaged), data[:position]):
            try:
                manifest = decode_manifest(value)
                for fragment in manifest.fragments:
                    if isinstance(fragment.row_ids, bytes):
                        decode_row_ids(fragment.row_ids, fragment.physical_rows)
                decode_transaction(manifest.inline_transaction or b"")
                decode_index_section(manifest.index_section or b"")
            except BadDataError:
                refused += 1
    assert refused >= 300


def test_files_of_clones_are_below_bases(tmp_path: Path) -> None:
    """A file that is looked for in the clone's own folder does not exist."""
    folder, clone = tmp_path / "t.lance", tmp_path / "clone.lance"
    ds = lance.write_dataset(rows(0, 10), str(folder))
    ds.delete("id = 3")
    ds.shallow_clone(str(clone), 2)
    lance.write_dataset(rows(0, 1), str(clone), mode="append")
    *_, (_, newest) = manifests(clone)
    folders = []
    base_of = {base.id: base for base in newest.base_paths}
    for fragment in newest.fragments:
        for file in fragment.files:
            base = None if file.base_id is None else base_of[file.base_id]
            root = clone if base is None else Path(base.path.removeprefix("file://"))
            assert (root / paths.data_file_path(file.path, base)).exists()
            folders.append(root.resolve())
        if fragment.deletion_file is not None:
            assert fragment.deletion_file.base_id is not None
            base = base_of[fragment.deletion_file.base_id]
            root = Path(base.path.removeprefix("file://"))
            assert (root / paths.deletion_file_path(fragment.id, fragment.deletion_file)).exists()
            folders.append(root.resolve())
    assert folders == [folder.resolve(), folder.resolve(), clone.resolve()]
    assert feature_flags.flags_for(newest) == (
        newest.reader_feature_flags,
        newest.writer_feature_flags,
    )
    feature_flags.check_writable(newest)
    first = next(manifests(clone))[1]
    assert first.inline_transaction is not None
    operation = decode_transaction(first.inline_transaction).operation
    assert isinstance(operation, Clone)
    assert (operation.is_shallow, operation.ref_version) == (True, 2)


def test_data_replacements_of_pylance_read_alike(tmp_path: Path) -> None:
    """pylance commits replaced files as an operation of its own, and conflicts depend on its
    fragment and columns.
    """
    folder = tmp_path / "t.lance"
    ds = lance.write_dataset(rows(0, 10), str(folder))
    ds.merge(pa.table({"id": range(10), "w": range(10)}), "id")
    *_, (_, newest) = manifests(folder)
    file = newest.fragments[0].files[-1]
    new_file = lance.fragment.DataFile(
        file.path, list(file.field_ids), list(file.column_indices), *file.file_version
    )
    operation = lance.LanceOperation.DataReplacement(
        [lance.LanceOperation.DataReplacementGroup(0, new_file)]
    )
    lance.LanceDataset.commit(str(folder), operation, read_version=newest.version)
    *_, (_, after) = manifests(folder)
    assert after.inline_transaction is not None
    ours = decode_transaction(after.inline_transaction).operation
    assert isinstance(ours, DataReplacement)
    ((fragment_id, replaced),) = ours.replacements
    assert (fragment_id, replaced.path, replaced.field_ids) == (0, file.path, file.field_ids)
