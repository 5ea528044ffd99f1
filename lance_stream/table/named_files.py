"""The files that a version names, and the name under which a version would have a given file.

A file that no version names is not used by readers: it is left over from a removed version or a
failed commit, or it belongs to a commit in progress.

    data/*                            by its path, in a fragment
    data/{data file}/*.blob           with its data file
    _deletions/*.arrow|bin            by its path, in a fragment
    _transactions/*.txn               by its path
    _indices/{uuid}/**                by the index's folder
    _lance_stream/tombstones/*        by its path, in the config
    _lance_stream/key_bounds/*        with its column
    _lance_stream/key_index/*         with the first of its columns
    _lance_stream/staged_rows/*       never: rows of a commit in progress
    _lance_stream/quarantined/*       by its name, in the config
    _versions/{manifest}-{uuid}       never: staged for an external manifest store
    temporary files in those folders  never, and those in `_refs`, which has no other unused files

Other files in the directory do not belong to the table; nor do files deeper in one of these
folders, such as those of a branch called `x/data` in the directory of the branch `x`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.table import paths
from lance_stream.table.config import ledger_entries
from lance_stream.table.config.tombstones import read_tombstones
from lance_stream.table.fragments.fragment import ExternalFile, Fragment, has_overlays
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import BasePath, Manifest


class FileKind(StrEnum):
    """The kind of a file."""

    MANIFEST = "manifests"
    TRANSACTION = "transactions"
    DATA = "data files"
    BLOBS = "blob files"
    DELETIONS = "deletion files"
    INDEX = "index files"
    TOMBSTONES = "tombstone files"
    KEY_BOUNDS = "key bounds"
    KEY_INDEX = "indices of keys"
    STAGED_MANIFEST = "staged manifests"
    STAGED_ROWS = "staged rows"
    QUARANTINED_ROWS = "files of quarantined rows"
    TEMPORARY = "temporary files"


class Nameable(NamedTuple):
    """The kind of a file, and the name under which a version would have it.

    Attributes:
        kind: The kind.
        name: One of the names that `names_of` yields for versions that need the file; None if no
            version can need it.
        is_certain: Whether the path alone proves that the file belongs to the table. Otherwise it
            does only if a version names it, or has named it.
    """

    kind: FileKind
    name: str | None
    is_certain: bool = True


def names_of(manifest: Manifest, seen: set[bytes], *, with_bases: bool = True) -> Iterator[str]:
    """Yield the names of all files in the table's directory that a version needs.

    A base path may be the directory that is cleaned up, or a folder in it. This is not checked; a
    file below a base path has all names that it could have in that directory.

    Args:
        manifest: The version, of this table or another one; its features must be supported (see
            `feature_flags`).
        seen: The bytes of fragments to skip, since most fragments are in many versions. Those of
            the version are added.
        with_bases: Whether to include files below a base path.

    Raises:
        CorruptDataError: A stored path points outside the directory, or the bytes of a fragment,
            of the indices or of the tombstones are damaged.
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
    for name in ledger_entries.quarantined_files(manifest.config):
        yield paths.quarantined_rows_path(name)
    for field in manifest.schema.walk():
        yield paths.key_bounds_path(field.id)
        yield f"{paths.KEY_INDEX_DIRECTORY}/{field.id}"
    bases = {base_path.id: base_path for base_path in manifest.base_paths}
    for position, raw in enumerate(manifest.fragments.raws):
        if raw not in seen:
            seen.add(raw)
            yield from _names_of_fragment(manifest.fragments[position], bases, with_bases)


def _names_of_fragment(
    fragment: Fragment, bases: Mapping[int, BasePath], with_bases: bool
) -> Iterator[str]:
    if has_overlays(fragment):
        raise UnsupportedFeatureError(
            f"fragment {fragment.id} has overlays, whose files are unknown"
        )
    for file in fragment.files:
        if file.base_id is None:
            yield paths.data_file_path(file.path)
        elif with_bases:
            base = bases.get(file.base_id)
            yield from _names_below(base, paths.data_file_path(file.path, base))
    deletions = fragment.deletion_file
    if deletions is not None:
        path = paths.deletion_file_path(fragment.id, deletions)
        if deletions.base_id is None:
            yield path
        elif with_bases:
            yield from _names_below(bases.get(deletions.base_id), path)
    for stored in (
        fragment.row_ids,
        fragment.created_at_versions,
        fragment.last_updated_at_versions,
    ):
        if isinstance(stored, ExternalFile):
            yield paths.check_stored_path(stored.path)


def _names_below(base: BasePath | None, path: str) -> Iterator[str]:
    """Yield the possible paths of a file below a base path, relative to directories above it."""
    yield path
    parts = f"{base.path if base else ''}/{path}".split("/")
    for start, part in enumerate(parts):
        if part in _FIRST_PARTS:
            yield "/".join(parts[start:])


# Those of the local store; of the reference, for data files; of its object store for local files.
_TEMPORARY: Final = re.compile(r"\..+\.tmp|\.tmp.*|.+#\d+")

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def nameable(path: str) -> Nameable | None:
    """Classify a file; return None if it is not the table's, or is never cleaned up.

    Args:
        path: Relative to the table's directory.
    """
    for folder, parse in _FOLDERS.items():
        if path.startswith(f"{folder}/"):
            if _TEMPORARY.fullmatch(path.rpartition("/")[2]):
                return Nameable(FileKind.TEMPORARY, None, _depth(path) <= _depth(folder) + 2)
            return parse(path)
    return None


def _depth(path: str) -> int:
    return path.count("/")


def _data(path: str) -> Nameable:
    if path.endswith(".blob"):
        name = f"{path.rpartition('/')[0]}.lance"
        return Nameable(FileKind.BLOBS, name, _depth(path) == 2)
    return Nameable(FileKind.DATA, path, path.endswith(".lance") and _depth(path) == 1)


def _deletions(path: str) -> Nameable | None:
    matches = paths.parse_deletion_file_name(path.partition("/")[2]) is not None
    return Nameable(FileKind.DELETIONS, path) if matches else None


def _transaction(path: str) -> Nameable | None:
    matches = path.endswith(".txn") and _depth(path) == 1
    return Nameable(FileKind.TRANSACTION, path) if matches else None


def _version(path: str) -> Nameable | None:
    is_staged = paths.parse_staged_manifest_name(path.partition("/")[2]) is not None
    return Nameable(FileKind.STAGED_MANIFEST, None) if is_staged else None


def _index(path: str) -> Nameable | None:
    folder = "/".join(path.split("/")[:2])
    matches = path != folder and _UUID.fullmatch(folder.partition("/")[2]) is not None
    return Nameable(FileKind.INDEX, folder) if matches else None


def _parser_of(kind: FileKind) -> Callable[[str], Nameable | None]:
    """Return the parser for a folder below `_lance_stream`, which has no subfolders."""
    return lambda path: Nameable(kind, path) if _depth(path) == 2 else None


def _key_index(path: str) -> Nameable | None:
    column = paths.parse_key_index_name(path.rpartition("/")[2])
    if column is None or _depth(path) != 2:
        return None
    return Nameable(FileKind.KEY_INDEX, f"{paths.KEY_INDEX_DIRECTORY}/{column}")


def _staged_rows(path: str) -> Nameable | None:
    return Nameable(FileKind.STAGED_ROWS, None) if _depth(path) == 2 else None


_FOLDERS: Final[Mapping[str, Callable[[str], Nameable | None]]] = {
    paths.DATA_DIRECTORY: _data,
    paths.DELETIONS_DIRECTORY: _deletions,
    paths.TRANSACTIONS_DIRECTORY: _transaction,
    paths.INDICES_DIRECTORY: _index,
    paths.TOMBSTONES_DIRECTORY: _parser_of(FileKind.TOMBSTONES),
    paths.KEY_BOUNDS_DIRECTORY: _parser_of(FileKind.KEY_BOUNDS),
    paths.KEY_INDEX_DIRECTORY: _key_index,
    paths.STAGED_ROWS_DIRECTORY: _staged_rows,
    paths.QUARANTINED_ROWS_DIRECTORY: _parser_of(FileKind.QUARANTINED_ROWS),
    paths.VERSIONS_DIRECTORY: _version,
    paths.REFS_DIRECTORY: lambda _path: None,
}

FOLDERS: Final = tuple(_FOLDERS)
"""The folders in which unused files can be."""

_FIRST_PARTS: Final = frozenset(folder.partition("/")[0] for folder in FOLDERS)
