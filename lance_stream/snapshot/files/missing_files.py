"""Explains why a file of a version is missing: usually, the version has been cleaned up.

An open version (a dataset, a DataFrame or view of Spark, a planned batch) is not protected from
cleanup, unless it has a tag.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.storage.locations import is_relative
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import BasePath, Manifest, decode_manifest
from lance_stream.table.paths import (
    NamingScheme,
    branch_directory,
    data_file_path,
    manifest_path,
)


@contextmanager
def explaining_missing_files(store: Store, version: int, fragment: Fragment) -> Iterator[None]:
    """Add the reason to the error for a missing file of a version.

    Args:
        store: The table's directory.
        version: The version that references the file.
        fragment: The fragment of the file.
    """
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(f"{error}. {_reason(store, version, fragment)}") from error


def _reason(store: Store, version: int, fragment: Fragment) -> str:
    if not any(store.exists(manifest_path(version, scheme)) for scheme in NamingScheme):
        return (
            f"Version {version} of {store.uri} has been cleaned up since it was opened; nothing is "
            "damaged. Open the newest version of the table; a DataFrame or view of Spark keeps its "
            "version, so create it again. A tag protects a version from cleanup"
        )
    bases = {file.base_id for file in fragment.files} - {None}
    manifest = _manifest(store, version) if bases else None
    if manifest is not None:
        for base in manifest.base_paths:
            if base.id in bases and (reason := _reason_of(base, store, manifest, fragment)):
                return reason
    if bases:
        return (
            f"Version {version} of {store.uri} belongs to a clone, which reads files of its source "
            "table, and a cleanup of the source does not consider clones. A tag on the cloned "
            "version of the source protects these files"
        )
    return (
        f"Version {version} of {store.uri} exists and references the file: the table is damaged. "
        "`lance-stream verify` lists missing files"
    )


def _reason_of(base: BasePath, store: Store, manifest: Manifest, fragment: Fragment) -> str | None:
    """Return why a file is not below a base path; None if unknown."""
    if is_relative(base.path):
        return (
            f"Version {manifest.version} of {store.uri} refers to it by the relative path "
            f"{base.path!r}, because it belongs to a clone or branch of a table that was "
            "opened by a relative path. Start this program in the same directory as its "
            "writer; or create the clone or branch again with the table's absolute path"
        )
    if _was_moved(store, manifest, base, fragment):
        return (
            f"Version {manifest.version} of {store.uri} belongs to a branch, which names the files "
            f"of its table by their location when the branch was created, {base.path!r}. The "
            "table was moved or copied since: move it back, or link that location to it"
        )
    return None


def _was_moved(store: Store, manifest: Manifest, base: BasePath, fragment: Fragment) -> bool:
    """Return whether a branch's table has the files that the branch names in another location."""
    if manifest.branch is None:
        return False
    root = store.at_root(store.root.removesuffix(f"/{branch_directory(manifest.branch)}"))
    paths = [data_file_path(file.path, base) for file in fragment.files if file.base_id == base.id]
    return all(map(root.exists, paths))


def _manifest(store: Store, version: int) -> Manifest | None:
    for scheme in NamingScheme:
        with suppress(NotFoundError, BadDataError):
            return decode_manifest(store.read(manifest_path(version, scheme)))
    return None
