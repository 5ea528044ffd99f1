"""Refuses to remove files through links, which may lead to another table's directory."""

from collections.abc import Iterable

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.snapshot.references import Refs
from lance_stream.storage.store import Store, is_reached_through_link
from lance_stream.table.paths import REFS_DIRECTORY, VERSIONS_DIRECTORY, branch_directory


def check_has_no_links(refs: Refs) -> None:
    """Check that the versions and references of a table or branch are in the table's directory.

    Raises:
        UnsupportedFeatureError: They are reached through a link.
    """
    check_no_links(refs.store, (VERSIONS_DIRECTORY,))
    directories = () if refs.branch is None else (branch_directory(refs.branch),)
    check_no_links(refs.root, (*directories, REFS_DIRECTORY))


def check_no_links(store: Store, folders: Iterable[str]) -> None:
    """Check that folders are in their table's directory, because files in them will be removed.

    Raises:
        UnsupportedFeatureError: One is reached through a link, so its files may belong to another
            table.
    """
    for folder in folders:
        if is_reached_through_link(store, folder):
            raise UnsupportedFeatureError(
                f"{store.uri}/{folder} is a link, or is reached through one, and may belong "
                "to another table. Nothing was removed. Replace the link with the folder itself, "
                "or make the table's whole directory a link"
            )
