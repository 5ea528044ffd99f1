"""Which files a cleanup may attribute to a table by their path alone."""

from dataclasses import replace

import pytest

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.table.config import tombstones
from lance_stream.table.config.tombstones import TombstoneFile, Tombstones
from lance_stream.table.fragments.fragment import (
    DataFile,
    DeletionFile,
    DeletionFileType,
    ExternalFile,
    Fragment,
    LineageColumn,
)
from lance_stream.table.indices import IndexMetadata, encode_index_section
from lance_stream.table.manifest import BasePath, FragmentList, Manifest
from lance_stream.table.messages import wire
from lance_stream.table.named_files import FileKind, Nameable, nameable, names_of
from tests.commit.tables import create

UUID = "01234567-89ab-cdef-0123-456789abcdef"
RANDOM = "0a" * 16
KEYS = "_lance_stream/key_index"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/.x.lance.tmp", Nameable(FileKind.TEMPORARY, None)),
        ("data/x/.y.blob.tmp", Nameable(FileKind.TEMPORARY, None)),
        ("data/x/y/.z.tmp", Nameable(FileKind.TEMPORARY, None, is_certain=False)),
        ("data/x.lance#1", Nameable(FileKind.TEMPORARY, None)),
        ("data/x.lance", Nameable(FileKind.DATA, "data/x.lance")),
        ("data/x/y.lance", Nameable(FileKind.DATA, "data/x/y.lance", is_certain=False)),
        ("data/x.parquet", Nameable(FileKind.DATA, "data/x.parquet", is_certain=False)),
        ("data/x/1.blob", Nameable(FileKind.BLOBS, "data/x.lance")),
        ("data/x/y/1.blob", Nameable(FileKind.BLOBS, "data/x/y.lance", is_certain=False)),
        ("data/x/y.txt", Nameable(FileKind.DATA, "data/x/y.txt", is_certain=False)),
        ("_deletions/1-2-3.bin", Nameable(FileKind.DELETIONS, "_deletions/1-2-3.bin")),
        ("_deletions/1-2.bin", None),
        ("_deletions/x/1-2-3.bin", None),
        ("_transactions/1-u.txn", Nameable(FileKind.TRANSACTION, "_transactions/1-u.txn")),
        ("_transactions/notes.txt", None),
        ("_transactions/x/1-u.txn", None),
        ("_versions/7.manifest-uuid", Nameable(FileKind.STAGED_MANIFEST, None)),
        ("_versions/7.manifest", None),
        (f"_indices/{UUID}/a", Nameable(FileKind.INDEX, f"_indices/{UUID}")),
        (f"_indices/{UUID}/a/b", Nameable(FileKind.INDEX, f"_indices/{UUID}")),
        (f"_indices/{UUID}", None),
        (f"_indices/x{UUID}/a", None),
        ("_lance_stream/tombstones/x", Nameable(FileKind.TOMBSTONES, "_lance_stream/tombstones/x")),
        ("_lance_stream/tombstones/x/y", None),
        (f"{KEYS}/7-{RANDOM}.keys", Nameable(FileKind.KEY_INDEX, f"{KEYS}/7")),
        (f"{KEYS}/x/7-{RANDOM}.keys", None),
        (f"{KEYS}/7.keys", None),
        (f"_lance_stream/staged_rows/{RANDOM}", Nameable(FileKind.STAGED_ROWS, None)),
        (f"_lance_stream/staged_rows/x/{RANDOM}", None),
        ("_refs/branches/.x.json.0a.tmp", Nameable(FileKind.TEMPORARY, None)),
        ("_refs/tags/x.json", None),
        ("other/x.lance", None),
        ("x.lance", None),
    ],
)
def test_only_paths_of_tables_are_certain(path: str, expected: Nameable | None) -> None:
    """People put files of their own into a table's directory, and no version names them: a cleanup
    that takes them for the table's deletes them.
    """
    assert nameable(path) == expected


ARROW = DeletionFileType.ARROW_ARRAY
BASE = BasePath(3, "/other/data/t", is_dataset_root=True)


def names(manifest: Manifest, *fragments: Fragment, with_bases: bool = True) -> set[str]:
    """Return the names of the files of a version with these fragments, without those of columns."""
    changed = replace(manifest, fragments=FragmentList.of(fragments))
    columns = ("_lance_stream/key_bounds/", f"{KEYS}/")
    every = names_of(changed, set(), with_bases=with_bases)
    return {name for name in every if not name.startswith(columns)}


@pytest.fixture
def manifest() -> Manifest:
    """A version that names no file but those of its fragments."""
    return replace(create(1).read_latest(), transaction_file="", base_paths=(BASE,))


def test_versions_name_their_files(manifest: Manifest) -> None:
    """A file that is left out here would be deleted while a version needs it."""
    assert names(manifest) == set()
    index = IndexMetadata(bytes(16), (0,), "xs", 1)
    deletes = (TombstoneFile(f"{1:032x}.arrow", 1, 1),)
    remembered = Tombstones(("id",), "seq", "int64", deletes)
    version = replace(
        manifest,
        transaction_file="1-u.txn",
        index_section=encode_index_section([index]),
        config=tombstones.config_entries(remembered),
    )
    assert names(version) == {
        "_transactions/1-u.txn",
        "_indices/00000000-0000-0000-0000-000000000000",
        f"_lance_stream/tombstones/{1:032x}.arrow",
    }


def test_fragments_name_their_files(manifest: Manifest) -> None:
    """Those in the table's directory, also beside files below a base path."""
    files = (DataFile("a.lance", (0,), (0,), (2, 2)), DataFile("b.lance", (1,), (0,), (2, 2)))
    deletions = DeletionFile(ARROW, 1, 7, 1)
    stored = [ExternalFile(f"_rows/{name}", 0, 9) for name in "icu"]
    fragment = Fragment(4, files, 10, deletions, *stored)
    assert names(manifest, fragment) == {
        *("data/a.lance", "data/b.lance", "_deletions/4-1-7.arrow"),
        *("_rows/i", "_rows/c", "_rows/u"),
    }
    inline = Fragment(4, files, 10, None, b"ids", LineageColumn(-5, files[0]), None)
    assert names(manifest, inline) == {"data/a.lance", "data/b.lance"}
    below = replace(
        fragment,
        files=(files[0], replace(files[1], base_id=3)),
        deletion_file=replace(deletions, base_id=3),
        row_ids=b"ids",
        created_at_versions=None,
        last_updated_at_versions=None,
    )
    assert names(manifest, below, with_bases=False) == {"data/a.lance"}
    assert names(manifest, below) == {
        *("data/a.lance", "data/b.lance", "_deletions/4-1-7.arrow"),
        *("data/t/data/b.lance", "data/t/_deletions/4-1-7.arrow"),  # if the base is above
    }


def test_unknown_files_are_not_left_out(manifest: Manifest) -> None:
    """The files of overlays are unknown here, and a cleanup must not delete them."""
    overlaid = Fragment(4, (), 10, unknown=wire.frame(11, b""))
    with pytest.raises(UnsupportedFeatureError, match="fragment 4 has overlays"):
        names(manifest, overlaid)
