"""Manifests that old releases of Lance left without row counts, with wrong ones, or with a field
in two files: read right, reported by `verify`, and mended by the next commit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.dataset import Dataset
from lance_stream.table.changes.appended import appended_fragments
from tests.dataset.manifest_edits import edit_manifest

pytestmark = pytest.mark.oracle

ROWS = {"id": [number for number in range(30) if number % 7 != 3]}


def old_table(path: Path, change: Callable[[table_pb2.Manifest], object]) -> Path:
    """Create a table of file version 0.1, two fragments and deleted rows; change its manifest."""
    for first, stop in ((0, 20), (20, 30)):
        rows = pa.table({"id": list(range(first, stop))})
        lance.write_dataset(rows, path, mode="append", data_storage_version="legacy")
    lance.dataset(path).delete("id % 7 = 3")
    edit_manifest(path, change)
    return path


def without_counts(manifest: table_pb2.Manifest) -> None:
    """Change a manifest to what Lance 0.7 wrote."""
    manifest.ClearField("writer_version")
    manifest.ClearField("data_format")
    manifest.ClearField("max_fragment_id")
    for fragment in manifest.fragments:
        fragment.ClearField("physical_rows")
        fragment.deletion_file.ClearField("num_deleted_rows")


def with_wrong_counts(manifest: table_pb2.Manifest) -> None:
    """Change a manifest to what Lance 0.8 wrote: deleted rows were subtracted twice."""
    without_counts(manifest)
    for fragment, rows, deleted in zip(manifest.fragments, (17, 9), (3, 1), strict=True):
        fragment.physical_rows = rows
        fragment.deletion_file.num_deleted_rows = deleted


def with_wrong_deletions(manifest: table_pb2.Manifest) -> None:
    """Change only the numbers of deleted rows."""
    without_counts(manifest)
    for fragment in manifest.fragments:
        fragment.deletion_file.num_deleted_rows = 5


OLD = pytest.mark.parametrize("change", [without_counts, with_wrong_counts])


@OLD
def test_rows_are_counted_in_the_files(
    change: Callable[[table_pb2.Manifest], object], tmp_path: Path
) -> None:
    """Manifests of Lance 0.7 state no counts and those of 0.8 wrong ones, so only the files are
    right.
    """
    ds = lance_stream.open_dataset(old_table(tmp_path / "t", change))
    assert ds.to_table().to_pydict() == ROWS
    assert ds.count_rows() == ds.count_rows("id >= 0") == 26
    assert ds.take([0, 25]).to_pydict() == {"id": [0, 29]}
    rules = [finding.rule for finding in ds.verify()]
    assert ("row counts" in rules) == (change is with_wrong_counts)


@pytest.mark.parametrize("change", [with_wrong_counts, with_wrong_deletions])
def test_wrong_counts_are_findings(
    change: Callable[[table_pb2.Manifest], object], tmp_path: Path
) -> None:
    """Readers ignore these counts, so that only `verify` can tell that other programs see them."""
    ds = lance_stream.open_dataset(old_table(tmp_path / "t", change))
    findings = [finding for finding in ds.verify() if finding.rule == "row counts"]
    assert [finding.where for finding in findings] == ["fragment 0", "fragment 1"]


@OLD
@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        (lambda ds: ds.append(pa.table({"id": [100]})), [*ROWS["id"], 100]),
        (lambda ds: ds.delete("id < 20"), [value for value in ROWS["id"] if value >= 20]),
        (lambda ds: ds.update({"id": "id + 1"}, where="id = 29"), [*ROWS["id"][:-1], 30]),
        (
            lambda ds: ds.upsert(pa.table({"id": [29, 31]}), on="id"),
            [*ROWS["id"][:-1], 29, 31],
        ),
        (lambda ds: ds.compact(), ROWS["id"]),
        (lambda ds: ds.update_config({"key": "value"}), ROWS["id"]),
        (lambda ds: ds.rename_columns({"id": "id2"}).rename_columns({"id2": "id"}), ROWS["id"]),
    ],
    ids=["append", "delete", "update", "upsert", "compact", "configure", "rename"],
)
def test_the_next_commit_states_row_counts(
    change: Callable[[table_pb2.Manifest], object],
    verb: Callable[[Dataset], Dataset],
    expected: list[int],
    tmp_path: Path,
) -> None:
    """After any verb both programs must find correct counts in the manifest."""
    path = old_table(tmp_path / "t", change)
    ds = verb(lance_stream.open_dataset(path))
    assert ds.to_table().to_pydict() == {"id": expected}
    assert ds.count_rows() == len(expected)
    assert ds.verify() == []
    numbers = ds.table.manifest.fragments.numbers
    assert int(numbers.physical_rows.sum()) - int(numbers.num_deleted_rows.sum()) == len(expected)
    theirs = lance.dataset(path)
    assert theirs.count_rows() == len(expected)
    assert theirs.to_table().to_pydict() == {"id": expected}
    assert ds.versions()[-1].num_rows == len(expected)


def test_restoring_old_versions_states_row_counts(tmp_path: Path) -> None:
    """A restore would otherwise bring the missing counts back."""
    path = old_table(tmp_path / "t", with_wrong_counts)
    ds = lance_stream.open_dataset(path)
    old = ds.version
    ds = ds.append(pa.table({"id": [100]})).restore(old)
    assert ds.to_table().to_pydict() == ROWS
    assert None not in ds.table.manifest.fragments.live_rows
    assert lance.dataset(path).count_rows() == 26


@pytest.mark.floors
def test_versions_list_without_data_files(tmp_path: Path) -> None:
    """A list of versions must not fail for old versions whose files are gone."""
    path = old_table(tmp_path / "t", without_counts)
    shutil.rmtree(path / "data")
    shutil.rmtree(path / "_deletions")
    versions = lance_stream.open_dataset(path).versions()
    assert [version.num_rows for version in versions] == [20, 30, None]


def test_streams_continue_past_repaired_counts(tmp_path: Path) -> None:
    """A fragment whose counts were repaired has the same rows, and must not look appended."""
    path = old_table(tmp_path / "t", without_counts)
    before = lance_stream.open_dataset(path)
    after = before.append(pa.table({"id": [100]}))
    actual = appended_fragments(before.table.manifest, after.table.manifest, None)
    assert actual.changes is None
    assert [fragment.physical_rows for fragment in actual.fragments] == [1]


def field_twice(path: Path) -> Path:
    """Create a table whose fragments have fields 1 and 2 in two files, as 0.10.5 did."""
    for first, stop in ((0, 4), (4, 6)):
        rows = pa.table(
            {
                "id": list(range(first, stop)),
                "b": [-number for number in range(first, stop)],
                "c": [0] * (stop - first),
            }
        )
        lance.write_dataset(rows, path, mode="append", data_storage_version="legacy")
    other = path.parent / "other"
    for first, stop in ((0, 4), (4, 6)):
        rows = pa.table(
            {"b": [number * 10 for number in range(first, stop)], "c": list(range(first, stop))}
        )
        lance.write_dataset(rows, other, mode="append", data_storage_version="legacy")
    new = [fragment.metadata.files[0].path for fragment in lance.dataset(other).get_fragments()]
    for value in new:
        shutil.copy(other / "data" / value, path / "data" / value)

    def change(manifest: table_pb2.Manifest) -> None:
        manifest.writer_version.version = "0.10.5"
        for fragment, name in zip(manifest.fragments, new, strict=True):
            file = fragment.files.add()
            file.CopyFrom(fragment.files[0])
            file.path = name
            del file.fields[:]
            file.fields.extend([1, 2])

    edit_manifest(path, change)
    return path


@pytest.mark.floors
def test_duplicate_fields_use_the_last_file(
    tmp_path: Path,
) -> None:
    """The file listed last counts and the next commit repairs the manifest; pylance reads the
    first one, with values of dropped columns, until then.
    """
    path = field_twice(tmp_path / "t")
    migrated = lance.dataset(shutil.copytree(path, tmp_path / "migrated"))
    migrated.delete("false")
    ds = lance_stream.open_dataset(path)
    ids = list(range(6))
    expected = {"id": ids, "b": [10 * id_ for id_ in ids], "c": ids}
    assert ds.to_table().to_pydict() == migrated.to_table().to_pydict() == expected
    # the bounds of the old file's pages would leave these rows out
    assert ds.to_table(filter="b >= 40").to_pydict() == {"id": [4, 5], "b": [40, 50], "c": [4, 5]}
    assert {finding.rule for finding in ds.verify()} == {"fields of files"}
    ds = ds.append(pa.table({"id": [6], "b": [60], "c": [6]}))
    expected = {
        name: [*column, column[-1] + step]
        for (name, column), step in zip(expected.items(), (1, 10, 1), strict=True)
    }
    assert ds.to_table().to_pydict() == expected
    assert ds.verify() == []
    assert lance.dataset(path).to_table().to_pydict() == expected
    assert ds.compact().to_table().to_pydict() == expected
