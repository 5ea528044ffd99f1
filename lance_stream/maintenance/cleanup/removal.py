"""Deletes the manifests of the selected versions, the oldest first, and expired tags.

A manifest is not deleted, or is restored, if a tag, a branch or a commit in progress has protected
its version since it was selected.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from lance_stream.commit.same_table import check_is_same_table
from lance_stream.errors import NotFoundError
from lance_stream.maintenance.cleanup.commits_in_progress import CommitsInProgress
from lance_stream.maintenance.cleanup.manifests import read_ahead
from lance_stream.maintenance.cleanup.protections import Protections, branches_by_origin
from lance_stream.maintenance.cleanup.selection import Selection
from lance_stream.maintenance.consumers import Consumer, delete_consumer_tag, is_consumer_tag
from lance_stream.snapshot.references import Refs
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import delete_tag
from lance_stream.storage.store import Store

_VERSIONS_PER_STEP: Final = 64


def check_is_still_there(table: TableVersion) -> None:
    """Check that a table's location still has this table.

    Args:
        table: The newest version when the cleanup began.

    Raises:
        NotFoundError: The table was deleted.
        TableReplacedError: The location has another table.
    """
    check_is_same_table(table.log, table.log.read_state(), table.manifest)


def delete_expired_tags(refs: Refs, expired: Iterable[Consumer], tags: Iterable[str]) -> None:
    """Delete the tags of expired consumers and of killed operations.

    Args:
        refs: The references of the table or branch.
        expired: The consumers.
        tags: All expired tags.
    """
    for consumer in expired:
        delete_consumer_tag(refs, consumer)
    for tag in tags:
        with suppress(NotFoundError):
            if not is_consumer_tag(tag):
                delete_tag(refs, tag)


def remove_versions(
    table: TableVersion,
    selection: Selection,
    ignored: Collection[str],
    commits: CommitsInProgress,
) -> list[int]:
    """Delete the manifests of the selected versions that have not been protected since.

    Args:
        table: The newest version when the cleanup began.
        selection: The versions.
        ignored: The tags that protect nothing.
        commits: The commits in progress.

    Returns:
        The removed versions, ascending.

    Raises:
        NotFoundError: The table was deleted.
        TableReplacedError: The location has another table, of which nothing was removed.
    """
    path = table.log.manifest_path
    removed: list[int] = []
    for start in range(0, len(selection.removable), _VERSIONS_PER_STEP):
        versions = selection.removable[start : start + _VERSIONS_PER_STEP]
        protections = Protections(table.refs, ignored, branches_by_origin(table.refs))
        last = commits.last_removable(versions, selection.referenced)
        removable = [
            version for version in versions if version <= last and not protections.of(version)
        ]
        read = partial(_bytes_if_exist, table.store)
        manifests = read_ahead(table.store, read, [path(version) for version in removable])
        pairs = zip(removable, manifests, strict=True)
        data = {version: manifest for version, manifest in pairs if manifest is not None}
        check_is_still_there(table)
        table.log.remove(list(data))
        protections = Protections(table.refs, ignored, branches_by_origin(table.refs))
        for version, manifest in data.items():
            if protections.of(version):
                table.log.undo_remove(version, manifest)
            else:
                removed.append(version)
    return removed


def _bytes_if_exist(store: Store, path: str) -> bytes | None:
    with suppress(NotFoundError):
        return store.read(path)
    return None
