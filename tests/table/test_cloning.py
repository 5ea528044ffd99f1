"""A clone names the files of its source, and copies nothing but small ones."""

from dataclasses import replace

import pytest

from lance_stream.table.cloning import clone_of
from lance_stream.table.config import ledger_entries, tombstones
from lance_stream.table.config.ledger_entries import LedgerEntry
from lance_stream.table.fragments.fragment import (
    DataFile,
    DeletionFile,
    DeletionFileType,
    Fragment,
)
from lance_stream.table.indices import IndexMetadata, decode_index_section, encode_index_section
from lance_stream.table.manifest import BasePath, Manifest
from tests.commit.tables import create

BASE = BasePath(3, "/base", is_dataset_root=True)
FILE = DataFile("a.lance", (0,), (0,), (2, 2))
DELETIONS = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, 1)


@pytest.fixture
def source() -> Manifest:
    """A version with a base path."""
    return replace(create(1).read_latest(), base_paths=(BASE,))


@pytest.mark.parametrize("deletions", [None, DELETIONS, replace(DELETIONS, base_id=3)])
def test_cloned_files_are_below_a_base(source: Manifest, deletions: DeletionFile | None) -> None:
    """Files of the source are below a new base path, and others stay below theirs."""
    fragment = Fragment(0, (FILE, replace(FILE, path="b.lance", base_id=3)), 10, deletions)
    clone = clone_of(source, [fragment], (BASE,), "/source", None)
    (cloned,) = clone.fragments
    assert [file.base_id for file in cloned.files] == [4, 3]
    if deletions is None:
        assert cloned.deletion_file is None
    else:
        expected = 4 if deletions.base_id is None else 3
        assert cloned.deletion_file == replace(deletions, base_id=expected)
    assert [base.id for base in clone.base_paths] == [3, 4]
    assert clone.index_section is None


def test_cloned_indices_are_below_a_base(source: Manifest) -> None:
    """Their files are not copied either."""
    indices = [
        IndexMetadata(bytes([number]) * 16, (0,), f"i{number}", 1, base_id=base)
        for number, base in enumerate((None, 3))
    ]
    indexed = replace(source, index_section=encode_index_section(indices))
    clone = clone_of(indexed, [], (BASE,), "/source", "dev")
    cloned = decode_index_section(clone.index_section or b"")
    assert [index.base_id for index in cloned] == [4, 3]
    assert clone.branch == "dev"


def test_clones_remember_batches_and_deletes(source: Manifest) -> None:
    """A stream that goes on with the clone writes no batch twice, and late rows stay deleted."""
    entries = {
        **ledger_entries.config_entries("app", LedgerEntry(4)),
        tombstones.CONFIG_KEY: "any text",
    }
    configured = replace(source, config={**entries, "lance.auto_cleanup.interval": "20"})
    assert clone_of(configured, [], (), "/source", None).config == entries
