"""Which files a cleanup may attribute to a table by their path alone."""

import pytest

from lance_stream.table.named_files import FileKind, Nameable, nameable


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
        ("other/x.lance", None),
        ("x.lance", None),
    ],
)
def test_only_paths_of_tables_are_certain(path: str, expected: Nameable | None) -> None:
    """People put files of their own into a table's directory, and no version names them: a cleanup
    that takes them for the table's deletes them.
    """
    assert nameable(path) == expected
