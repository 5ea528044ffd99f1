"""Which files a cleanup may attribute to a table by their path alone."""

import pytest

from lance_stream.table.named_files import FileKind, Nameable, nameable

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
