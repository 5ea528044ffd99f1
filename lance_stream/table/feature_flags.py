"""Feature flags: the features that a reader or writer must support to use a table.

A manifest has two words of 64 bits. A reader that does not support a bit of `reader_feature_flags`
must not read the table; a writer that does not support a bit of `writer_feature_flags` must not
write to it. `FLAGS` defines how this library handles each bit, and why.

Source:  table.proto, Manifest.reader_feature_flags; measured on the reference.
Differs: The reference reads bit 14 (managed blobs); this library refuses it until it can read such
         blobs.
"""

from dataclasses import dataclass

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.table.manifest import Manifest
from lance_stream.table.manifest_fields import check_manifest_fields

DELETION_FILES = 1 << 0
STABLE_ROW_IDS = 1 << 1
V2_FORMAT = 1 << 2
TABLE_CONFIG = 1 << 3
BASE_PATHS = 1 << 4
NO_TRANSACTION_FILE = 1 << 5
DATA_OVERLAYS = 1 << 6
COVERED_INDEX_METADATA = 1 << 7
MIXED_FILE_VERSIONS = 1 << 8
STABLE_ROW_ID_FRAGMENT_REUSE = 1 << 9
FRAGMENT_REUSE_INDEX = 1 << 10
SPILLED_ROW_LINEAGE = 1 << 11
FRAGMENT_TREE = 1 << 12
INDEPENDENT_COVERING_FIELDS = 1 << 13
MANAGED_BLOBS = 1 << 14
NON_REUSABLE_FIELD_IDS = 1 << 15
ZONE_WRITE_SEEDS = 1 << 16
OBJECT_METADATA = 1 << 17


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    """How one bit is handled.

    Attributes:
        name: The feature's name.
        can_read: Whether tables with it can be read.
        can_write: Whether tables with it can be written to.
        reason: Why.
    """

    name: str
    can_read: bool
    can_write: bool
    reason: str


FLAGS: dict[int, FeatureFlag] = {
    DELETION_FILES: FeatureFlag("deletion files", True, True, "both formats are read and written"),
    STABLE_ROW_IDS: FeatureFlag(
        "stable row ids", True, True, "read, and assigned to every new row"
    ),
    V2_FORMAT: FeatureFlag(
        "file version 2", True, True, "ignored: the manifest names the data format"
    ),
    TABLE_CONFIG: FeatureFlag(
        "table config", True, True, "copied from version to version; contains the ledger"
    ),
    BASE_PATHS: FeatureFlag(
        "base paths",
        True,
        True,
        "files are read below their base path; new ones are written to the table",
    ),
    NO_TRANSACTION_FILE: FeatureFlag(
        "no transaction file", True, True, "the inline copy is read; new versions have both"
    ),
    DATA_OVERLAYS: FeatureFlag(
        "data overlay files", False, False, "ignoring an overlay would return stale values"
    ),
    COVERED_INDEX_METADATA: FeatureFlag(
        "covering columns of indices",
        True,
        True,
        "filters use an index for its key column only; index metadata is copied unchanged",
    ),
    MIXED_FILE_VERSIONS: FeatureFlag(
        "data files of several file versions",
        True,
        True,
        "every file is read by its version; new files have the table's",
    ),
    STABLE_ROW_ID_FRAGMENT_REUSE: FeatureFlag(
        "fragment reuse index with stable row ids", False, False, "not released by the reference"
    ),
    FRAGMENT_REUSE_INDEX: FeatureFlag(
        "fragment reuse index",
        True,
        True,
        "maps index entries to moved rows: filters use no index of such a table, and index "
        "metadata is copied unchanged",
    ),
    SPILLED_ROW_LINEAGE: FeatureFlag(
        "spilled row lineage",
        True,
        True,
        "row ids or row versions are in hidden columns of data files",
    ),
    FRAGMENT_TREE: FeatureFlag(
        "fragment tree", False, False, "the manifest itself does not list the fragments"
    ),
    INDEPENDENT_COVERING_FIELDS: FeatureFlag(
        "independent covering fields", False, False, "not released by the reference"
    ),
    MANAGED_BLOBS: FeatureFlag(
        "managed blobs", False, False, "values are in files that cannot be read yet"
    ),
    NON_REUSABLE_FIELD_IDS: FeatureFlag(
        "field ids that are never used again",
        False,
        False,
        "a writer must maintain the count of field ids, which is not supported; the flag is not "
        "valid for readers",
    ),
    ZONE_WRITE_SEEDS: FeatureFlag(
        "zone statistics in data files", False, False, "not released by the reference"
    ),
    OBJECT_METADATA: FeatureFlag(
        "clustering and object metadata", False, False, "not released by the reference"
    ),
}
"""How every defined bit is handled."""

PAIRED = MIXED_FILE_VERSIONS | FRAGMENT_REUSE_INDEX | MANAGED_BLOBS | ZONE_WRITE_SEEDS
"""Bits that are valid only if both words have them."""

_STICKY = MIXED_FILE_VERSIONS | FRAGMENT_REUSE_INDEX


def check_readable(manifest: Manifest) -> None:
    """Raise unless this library supports every feature that a reader of a version must.

    Raises:
        UnsupportedFeatureError: It does not; the message names the feature.
        CorruptDataError: Only one of the two words has a bit that both must have.
    """
    _check_paired(manifest)
    check_manifest_fields(manifest.unknown, for_writing=False)
    _refuse("read", manifest.reader_feature_flags, {b for b, f in FLAGS.items() if f.can_read})


def check_writable(manifest: Manifest) -> None:
    """Raise unless this library supports every feature that a writer of the next version must.

    Raises:
        UnsupportedFeatureError: It does not; the message names the feature.
        CorruptDataError: Only one of the two words has a bit that both must have.
    """
    check_readable(manifest)
    check_manifest_fields(manifest.unknown, for_writing=True)
    _refuse("written", manifest.writer_feature_flags, {b for b, f in FLAGS.items() if f.can_write})


def has_stable_row_ids(manifest: Manifest) -> bool:
    """Return whether the rows of a table have stable row ids."""
    return bool(manifest.reader_feature_flags & STABLE_ROW_IDS)


def flags_for(manifest: Manifest) -> tuple[int, int]:
    """Return the reader's and the writer's flags that a new version must carry.

    Args:
        manifest: The new version, with the flags of the previous one. Of these, stable row ids,
            mixed file versions and the fragment reuse index are kept, and covering columns while
            there are indices; the others are derived from the contents.
    """
    inherited = manifest.reader_feature_flags | manifest.writer_feature_flags
    both = inherited & (STABLE_ROW_IDS | _STICKY)
    if manifest.index_section is not None:
        both |= inherited & COVERED_INDEX_METADATA
    if manifest.fragments.has_deletion_files:
        both |= DELETION_FILES
    if manifest.base_paths:
        both |= BASE_PATHS
    if manifest.fragments.has_hidden_lineage:
        both |= SPILLED_ROW_LINEAGE
    return both, both | (TABLE_CONFIG if manifest.config else 0)


def _check_paired(manifest: Manifest) -> None:
    unpaired = (manifest.reader_feature_flags ^ manifest.writer_feature_flags) & PAIRED
    if unpaired:
        raise CorruptDataError(
            f"the manifest has {_names(unpaired)} in only one of the two words of flags; it must "
            "be in both"
        )


def _refuse(verb: str, flags: int, supported: set[int]) -> None:
    refused = flags & ~sum(supported)
    if refused:
        raise UnsupportedFeatureError(
            f"the table cannot be {verb}: it uses {_names(refused)} (flags {flags})"
        )


def _names(flags: int) -> str:
    bits = [1 << exponent for exponent in range(flags.bit_length()) if flags >> exponent & 1]
    return "; ".join(
        f"{FLAGS[bit].name} ({FLAGS[bit].reason})" if bit in FLAGS else f"the unknown feature {bit}"
        for bit in bits
    )
