"""Tables whose row ids and row versions are in external files can be changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset import Dataset
from lance_stream.errors import CorruptDataError
from lance_stream.table.fragments.fragment import ExternalFile, Fragment
from lance_stream.table.manifest import FragmentList, encode_manifest


def rows_of(ds: Dataset) -> dict[int, tuple[Any, ...]]:
    """Return value, row id, created-at and last-updated-at by id."""
    table = ds.scan(with_row_id=True, with_row_versions=True).read_all()
    return {row[0]: row[1:] for row in zip(*(value.to_pylist() for value in table), strict=True)}


def table_with(uri: str, names: list[str]) -> Dataset:
    """Return a table of two fragments, some of whose sequences are outside the manifest."""
    ds = lance_stream.create_dataset(uri, pa.schema([("id", pa.int64()), ("x", pa.string())]))
    for start in (0, 5):
        ds = ds.append(pa.table({"id": range(start, start + 5), "x": ["old"] * 5}))
    ds = ds.upsert(pa.table({"id": [2], "x": ["changed"]}), on="id")
    manifest = ds.table.manifest
    moved = [_outside(ds, fragment, names) for fragment in manifest.fragments]
    newer = replace(manifest, version=ds.version + 1, fragments=FragmentList.of(moved))
    assert ds.table.log.publish(newer.version, encode_manifest(newer))
    return lance_stream.open_dataset(uri)


def _outside(ds: Dataset, fragment: Fragment, names: list[str]) -> Fragment:
    changes: dict[str, Any] = {}
    for name in names:
        data = getattr(fragment, name)
        path = f"_rows/{fragment.id}-{name}"
        ds.table.store.write(path, b"before" + data + b"behind")
        changes[name] = ExternalFile(path, 6, len(data))
    return replace(fragment, **changes)


LINEAGE_FIELDS = ["row_ids", "created_at_versions", "last_updated_at_versions"]


@pytest.mark.parametrize(
    "names", [LINEAGE_FIELDS, LINEAGE_FIELDS[:1], LINEAGE_FIELDS[1:2]], ids=" ".join
)
def test_external_row_ids_and_versions_survive(tmp_path: Path, names: list[str]) -> None:
    """The format allows sequences in separate files, which a change must carry over."""
    ds = table_with(str(tmp_path / "t"), names)
    before = rows_of(ds)
    ds = ds.upsert(pa.table({"id": [1, 2, 7, 20], "x": ["new"] * 4}), on="id")
    assert rows_of(ds)[20][1:] == (10, ds.version, ds.version)
    for number in (1, 2, 7):
        assert rows_of(ds)[number] == ("new", *before[number][1:3], ds.version)
    ds = ds.update({"x": "'updated'"}, where="id in (3, 8)")
    for value in (3, 8):
        assert rows_of(ds)[value] == ("updated", *before[value][1:3], ds.version)
    ds = ds.delete("id < 5")
    untouched = {key: row for key, row in before.items() if key in (5, 6, 9)}
    assert {key: row for key, row in rows_of(ds).items() if key in untouched} == untouched
    assert ds.verify() == []


@pytest.mark.floors
def test_a_truncated_sequence_file_is_corrupt(tmp_path: Path) -> None:
    """Row ids from a truncated file would give rows another identity."""
    ds = table_with(str(tmp_path / "t"), LINEAGE_FIELDS)
    for path in (tmp_path / "t" / "_rows").iterdir():
        path.write_bytes(path.read_bytes()[:7])
    with pytest.raises(CorruptDataError, match="bytes at byte 6"):
        ds.upsert(pa.table({"id": [1], "x": ["new"]}), on="id")
