"""Explains a missing file of a version: usually, the version was cleaned up in the meantime.

An open version (a dataset, a DataFrame or view of Spark, a planned batch) is not protected from
cleanup; a tag protects it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.storage.locations import is_relative
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import BasePath, decode_manifest
from lance_stream.table.paths import NamingScheme, manifest_path


@contextmanager
def explaining_missing_files(store: Store, version: int, fragment: Fragment) -> Iterator[None]:
    """Add the reason to the error if a file of a version is missing.

    Args:
        store: The table's directory.
        version: The version that references the file.
        fragment: The fragment that it belongs to.
    """
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(f"{error}. {_why(store, version, fragment)}") from error


def _why(store: Store, version: int, fragment: Fragment) -> str:
    if not any(store.exists(manifest_path(version, scheme)) for scheme in NamingScheme):
        return (
            f"Version {version} of {store.uri} has been cleaned up since it was opened; nothing is "
            "damaged. Open the table again at its newest version: a DataFrame or view of Spark "
            "keeps the version that it was created with, so create it again. A tag keeps a version"
        )
    bases = {file.base_id for file in fragment.files} - {None}
    for base in _base_paths(store, version) if bases else ():
        if base.id in bases and is_relative(base.path):
            return (
                f"Version {version} of {store.uri} looks for it below {base.path!r}, which its "
                "writer wrote as a relative path: it was a clone or branch of a table that was "
                "opened by one. Start this program in the directory where that was done; or create "
                "the clone or branch again with the table's absolute path"
            )
    if bases:
        return (
            f"Version {version} of {store.uri} needs it, and is a clone: it reads files of the "
            "table that it was cloned from, whose cleanup does not know of clones. A tag there on "
            "the cloned version would have kept them"
        )
    return (
        f"Version {version} of {store.uri} exists and needs it: the table is damaged. "
        "`lance-stream verify` lists what is missing"
    )


def _base_paths(store: Store, version: int) -> tuple[BasePath, ...]:
    for scheme in NamingScheme:
        with suppress(NotFoundError, BadDataError):
            return decode_manifest(store.read(manifest_path(version, scheme))).base_paths
    return ()
