"""Reading the file of a manifest: from this process's memory where it is the same, else whole."""

from lance_stream.commit.manifest_memory import MANIFESTS
from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest, decode_manifest


def read_manifest(store: Store, path: str, version: int, *, is_newest: bool = False) -> Manifest:
    """Return the manifest in a file; the newest one is remembered, for it is asked for again.

    Args:
        store: The table's directory.
        path: The file.
        version: What it has to be the manifest of.
        is_newest: Whether it is the table's newest.

    Raises:
        NotFoundError: There is no such file.
        BadDataError: It is damaged, or states another version.
    """
    known = MANIFESTS.recall(store, path)
    if known is not None:
        return known
    data = store.read(path)
    manifest = decode_manifest_of(store, path, version, data)
    if is_newest:
        remember_manifest(store, path, manifest, data)
    return manifest


def remember_manifest(store: Store, path: str, manifest: Manifest, data: bytes) -> None:
    """Remember what a manifest states, in the place of the table's last one."""
    MANIFESTS.remember(store, path, manifest, data)


def decode_manifest_of(store: Store, path: str, version: int, data: bytes) -> Manifest:
    """Return the manifest in a file's bytes; see `read_manifest`."""
    try:
        manifest = decode_manifest(data)
        if manifest.version != version:
            raise CorruptDataError(
                f"the manifest of version {version} states version {manifest.version}"
            )
    except BadDataError as error:
        error.add_note(f"manifest {store.uri}/{path}")
        raise
    return manifest
