"""Which files a version names, and what a file in the table's directory would be named as.

A file that no version names is of no use to a reader: it is left over from a version that is gone
or from a commit that failed, or it belongs to a commit that is under way.

    data/**.lance                     by its path, in a fragment
    data/{data file}/*.blob           with its data file
    _deletions/*.arrow|bin            by its path, in a fragment
    _transactions/*.txn               by its path
    _indices/{uuid}/**                by the index's folder
    _lance_stream/tombstones/*        by its path, in the config
    _lance_stream/key_bounds/*        with the column that it is of
    _versions/{manifest}-{uuid}       never: staged for an external manifest store
    temporary files in those folders  never

Whatever else lies in the directory is none of these, and belongs to somebody else.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.table import paths
from lance_stream.table.fragments import ExternalFile, Fragment, has_overlays
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import Manifest
from lance_stream.table.tombstones import read_tombstones


class FileKind(StrEnum):
    """What a file is."""

    MANIFEST = "manifests"
    TRANSACTION = "transactions"
    DATA = "data files"
    BLOBS = "blob files"
    DELETIONS = "deletion files"
    INDEX = "index files"
    REMEMBERED_DELETES = "files of remembered deletes"
    KEY_BOUNDS = "key bounds"
    STAGED_MANIFEST = "staged manifests"
    TEMPORARY = "temporary files"


class Nameable(NamedTuple):
    """What a file is, and how a version would name it.

    Attributes:
        kind: What it is.
        name: One of those that `names_of` gives for the versions that need the file; None if no
            version ever does.
        is_certain: Whether its path alone says that it is the table's. One of which it does not
            is the table's if a version names it, or did.
    """

    kind: FileKind
    name: str | None
    is_certain: bool = True


def names_of(manifest: Manifest, known: set[bytes]) -> Iterator[str]:
    """Yield the names of all files in the table's own directory that a version needs.

    Files below a base path have the names that they would have here: whether the base is the
    table's own directory is not looked into.

    Args:
        manifest: The version; its features must be known (see `feature_flags`).
        known: Bytes of fragments that are passed over. The version's are added to them: most
            fragments stand in many versions.

    Raises:
        CorruptDataError: A stored path leads out of the directory, or the bytes of a fragment, of
            the indices or of the tombstones are damaged.
        UnsupportedFeatureError: A fragment has overlays.
    """
    if manifest.transaction_file:
        yield paths.transaction_path(manifest.transaction_file)
    if manifest.index_section is not None:
        for index in decode_index_section(manifest.index_section):
            yield paths.index_folder(index.uuid)
    tombstones = read_tombstones(manifest.config)
    for file in tombstones.files if tombstones else ():
        yield paths.tombstone_path(file.name)
    for each in manifest.schema.walk():
        yield paths.key_bounds_path(each.id)
    for place, raw in enumerate(manifest.fragments.raws):
        if raw not in known:
            known.add(raw)
            yield from _names_of_fragment(manifest.fragments[place])


def _names_of_fragment(fragment: Fragment) -> Iterator[str]:
    if has_overlays(fragment):
        raise UnsupportedFeatureError(
            f"fragment {fragment.id} has overlays, and which files those name is not known"
        )
    for file in fragment.files:
        yield paths.data_file_path(file.path)
    if fragment.deletion_file is not None:
        yield paths.deletion_file_path(fragment.id, fragment.deletion_file)
    for stored in (
        fragment.row_ids,
        fragment.created_at_versions,
        fragment.last_updated_at_versions,
    ):
        if isinstance(stored, ExternalFile):
            yield paths.check_stored_path(stored.path)


# A local store's own; the reference's, for data files; those of its library for local files.
_TEMPORARY: Final = re.compile(r"\..+\.tmp|\.tmp.*|.+#\d+")


def nameable(path: str) -> Nameable | None:
    """Return what a file is; None if it is none of the table's, or one that is never in the way.

    Args:
        path: Relative to the table's directory.
    """
    for folder, look in _FOLDERS.items():
        if path.startswith(f"{folder}/"):
            if _TEMPORARY.fullmatch(path.rpartition("/")[2]):
                return Nameable(FileKind.TEMPORARY, None)
            return look(path)
    return None


def _data(path: str) -> Nameable:
    if path.endswith(".blob"):
        return Nameable(FileKind.BLOBS, f"{path.rpartition('/')[0]}.lance")
    return Nameable(FileKind.DATA, path, path.endswith(".lance"))


def _deletions(path: str) -> Nameable | None:
    is_one = paths.parse_deletion_file_name(path.partition("/")[2]) is not None
    return Nameable(FileKind.DELETIONS, path) if is_one else None


def _transaction(path: str) -> Nameable | None:
    return Nameable(FileKind.TRANSACTION, path) if path.endswith(".txn") else None


def _version(path: str) -> Nameable | None:
    is_staged = paths.parse_staged_manifest_name(path.rpartition("/")[2]) is not None
    return Nameable(FileKind.STAGED_MANIFEST, None) if is_staged else None


def _index(path: str) -> Nameable | None:
    folder = "/".join(path.split("/")[:2])
    return Nameable(FileKind.INDEX, folder) if path != folder else None


_FOLDERS: Final[Mapping[str, Callable[[str], Nameable | None]]] = {
    paths.DATA_DIRECTORY: _data,
    paths.DELETIONS_DIRECTORY: _deletions,
    paths.TRANSACTIONS_DIRECTORY: _transaction,
    paths.INDICES_DIRECTORY: _index,
    paths.TOMBSTONES_DIRECTORY: lambda path: Nameable(FileKind.REMEMBERED_DELETES, path),
    paths.KEY_BOUNDS_DIRECTORY: lambda path: Nameable(FileKind.KEY_BOUNDS, path),
    paths.VERSIONS_DIRECTORY: _version,
}

FOLDERS: Final = tuple(_FOLDERS)
"""The folders in which files may be left over."""
