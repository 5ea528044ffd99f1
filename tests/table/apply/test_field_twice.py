"""A field in two files of a fragment is read from the last one, and the others are marked."""

from dataclasses import replace

import pyarrow as pa
import pytest

from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from lance_stream.table.apply.field_twice import may_have_field_twice, with_fields_once
from lance_stream.table.fragments.fragment import DataFile
from lance_stream.table.manifest import Manifest, WriterVersion
from tests.commit.tables import create

OLD = DataFile("old.lance", (0, 1), (0, 1), (2, 0))
NEW = DataFile("new.lance", (0,), (0,), (2, 0))


def files_of(*files: DataFile) -> tuple[DataFile, ...]:
    """Return what becomes of the files of a table's second fragment."""
    manifest = create(1, 1).read_latest()
    first, second = manifest.fragments
    fragments = manifest.fragments.replaced({1: replace(second, files=files)})
    mended = with_fields_once(replace(manifest, fragments=fragments))
    assert mended.fragments[0] == first
    return mended.fragments[1].files


def test_old_values_are_marked_as_unused() -> None:
    """A reader that takes the first file would show replaced values."""
    assert files_of(OLD, NEW) == (replace(OLD, field_ids=(-2, 1)), NEW)


def test_files_without_used_columns_are_dropped() -> None:
    """Nobody reads them, and a cleanup can remove them."""
    other = DataFile("other.lance", (1,), (0,), (2, 0))
    assert files_of(NEW, other, OLD) == (OLD,)
    assert files_of(other, NEW, replace(NEW, path="newest.lance")) == (
        other,
        replace(NEW, path="newest.lance"),
    )


def test_structs_may_be_in_several_files() -> None:
    """Each file with some of a struct's parts names the struct, too."""
    columns = pa.schema([pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))])
    schema = assign_ids(from_arrow(columns))
    files = (
        DataFile("a.lance", (0, 1), (-1, 0), (2, 1)),
        DataFile("b.lance", (0, 2), (-1, 0), (2, 1)),
    )
    manifest = create(1).read_latest()
    fragment = replace(manifest.fragments[0], files=files)
    manifest = replace(
        manifest, schema=schema, fragments=manifest.fragments.replaced({0: fragment})
    )
    assert with_fields_once(manifest).fragments[0].files == files


def test_first_columns_of_legacy_files_stay() -> None:
    """Columns of version 0.1 are counted from the first field's id, which a mark would hide."""
    legacy = [replace(file, column_indices=(), file_version=(0, 1)) for file in (OLD, NEW)]
    assert files_of(*legacy) == tuple(legacy)
    second = replace(NEW, field_ids=(1,), column_indices=(), file_version=(0, 1))
    assert files_of(legacy[0], second) == (replace(legacy[0], field_ids=(0, -2)), second)


@pytest.mark.parametrize(
    ("library", "version", "is_old"),
    [
        ("lance", "0.10.18", True),
        ("lance", "0.9.1", True),
        ("lance", "0.11.0", False),
        ("lance", "1.2.0", False),
        ("lance", "dev", False),
        ("lance", "0.x", False),
        ("lance", "x.1", False),
        ("lancedb", "0.9.1", False),
    ],
)
def test_writers_through_0_10_are_checked(library: str, version: str, is_old: bool) -> None:
    """Later writers store no field twice, so their fragments need no check."""
    manifest = replace(create(1).read_latest(), writer_version=WriterVersion(library, version))
    assert may_have_field_twice(manifest) == is_old


def test_versions_without_a_writer_are_new() -> None:
    """Writers before 0.8 added no columns to files."""
    manifest: Manifest = replace(create(1).read_latest(), writer_version=None)
    assert not may_have_field_twice(manifest)
    assert not may_have_field_twice(None)
