"""The files to delete: those that only removed versions reference, and old unreferenced ones.

A file that no version ever referenced may be about to be committed, so it must have the age
`rules.GRACE`, as in the reference, unless the caller knows that there are no writers. A file that a
removed version referenced is not about to be committed, and is deleted immediately.

`table.named_files` determines which files a version references.
"""

import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TypeAlias

from lance_stream.environment import Environment
from lance_stream.errors import BadDataError
from lance_stream.keys.file_columns import random_part
from lance_stream.keys.index.run_files import is_useless
from lance_stream.maintenance.cleanup.file_work import FileWork
from lance_stream.maintenance.cleanup.rules import GRACE, CleanupRules
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store, StoredFile, is_reached_through_link
from lance_stream.table.feature_flags import check_writable
from lance_stream.table.manifest import BasePath, Manifest
from lance_stream.table.named_files import FOLDERS, FileKind, Nameable, nameable, names_of

NamesByBase: TypeAlias = defaultdict[Sequence[BasePath], set[bytes]]
"""The fragments whose file names have been read, by the base paths of the versions."""

_log = logging.getLogger(__name__)


class UnreferencedFiles:
    """The files to delete, as far as known.

    Args:
        files: All files of the table that a version may name, with their kinds.
        removed: The names that the removed versions reference.
        latest_abandoned: The latest write time, in seconds since 1970-01-01 UTC, of a
            never-referenced file to delete.
    """

    def __init__(
        self,
        files: Iterable[tuple[Nameable, StoredFile]],
        removed: set[str],
        latest_abandoned: float,
    ) -> None:
        self._by_name: dict[str | None, list[tuple[Nameable, StoredFile]]] = defaultdict(list)
        for identity, file in files:
            is_abandoned = identity.is_certain and file.modified <= latest_abandoned
            if is_abandoned or identity.name in removed:
                self._by_name[identity.name].append((identity, file))
        self._seen: NamesByBase = defaultdict(set)

    def exclude(self, manifests: Iterable[Manifest]) -> None:
        """Exclude the files of remaining versions; stops reading when no file is left."""
        if self._has_named_files():
            for manifest in manifests:
                check_writable(manifest)
                for name in referenced_names(manifest, self._seen):
                    self._by_name.pop(name, None)
                if not self._has_named_files():
                    break

    def _has_named_files(self) -> bool:
        return any(name is not None for name in self._by_name)

    def files(self) -> list[tuple[Nameable, StoredFile]]:
        """Return the files and their kinds."""
        return [file for files in self._by_name.values() for file in files]


def referenced_names(
    manifest: Manifest, seen: NamesByBase, *, with_bases: bool = True
) -> Iterator[str]:
    """Yield the names of the files that a version references, except those yielded before.

    Raises:
        BadDataError: The files that the version needs are unknown.
    """
    try:
        yield from names_of(manifest, seen[manifest.base_paths], with_bases=with_bases)
    except BadDataError as error:
        error.add_note(f"the files that version {manifest.version} needs are unknown")
        raise


def latest_abandoned(rules: CleanupRules, environment: Environment) -> float:
    """Return the latest write time of a file that is certainly not about to be committed."""
    if rules.delete_unverified:
        return float("inf")
    return environment.now_nanos() / 1e9 - GRACE.total_seconds()


def list_nameable_files(
    table: TableVersion, work: FileWork
) -> Iterator[tuple[Nameable, StoredFile]]:
    """Yield the files that a version may name, with their kinds; skips folders behind links."""
    folders = [folder for folder in FOLDERS if not _is_behind_link(table.store, folder)]
    data_files: set[bytes | None] = set()
    for files in work.list_folders(table.store, folders):
        staged: list[StoredFile] = []
        for file in files:
            identity = nameable(file.path)
            if identity is not None and identity.kind is FileKind.STAGED_MANIFEST:
                staged.append(file)
            elif identity is not None:
                if identity.kind is FileKind.DATA:
                    data_files.add(random_part(file.path))
                elif identity.kind is FileKind.KEY_INDEX and _is_useless(table, file, data_files):
                    identity = identity._replace(name=None)
                yield identity, file
        if staged:
            obsolete = table.log.obsolete_staged_files([file.path for file in staged])
            identity = Nameable(FileKind.STAGED_MANIFEST, None)
            yield from ((identity, file) for file in staged if file.path in obsolete)


def _is_useless(table: TableVersion, file: StoredFile, data_files: Container[bytes | None]) -> bool:
    """Return whether a run of the key index helps no upsert; False if unknown."""
    if table.manifest.base_paths:
        return False  # its data files may be elsewhere
    return is_useless(table.store, file.path, data_files)


def _is_behind_link(store: Store, folder: str) -> bool:
    if not is_reached_through_link(store, folder):
        return False
    _log.warning(
        "%s/%s is a link, and may lead to another table: its files were not removed",
        store.uri,
        folder,
    )
    return True
