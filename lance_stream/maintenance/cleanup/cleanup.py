"""Cleanup: removes old versions, and the files that no remaining version references.

    1  list versions, tags and files; select the versions to remove, with the files they reference
    2  exclude files that the remaining versions reference
    3  delete the manifests of the selected versions, the oldest first
    4  list the versions again, and exclude files that new ones reference
    5  delete the rest: files of removed versions, and old files that were never referenced

One branch is cleaned up at a time, the main branch or another one. In steps 2 and 4, the versions
of all other branches count as remaining, because they reference its files by base paths; so do
those of a branch whose creation or deletion is not finished.

These versions are kept: the newest one; recent ones, and all after a recent one; the requested
number of newest ones; tagged ones; those from which a branch was created; for each consumer the
version that it has finished and all after it, which it has yet to read; and recent ones that a
commit in progress could publish again (`commits_in_progress`).

A cleanup fails if it cannot list, read or decode something: a manifest, a tag, a branch, an unknown
kind of reference. It also fails if a version is listed but does not exist.

If a cleanup is killed at any point, the table is consistent: manifests are deleted before the files
that they reference, so every listed version can be read. A later cleanup deletes the remaining
files.

Other processes continue meanwhile. Step 4 finds what they commit. A tag on a version that is being
removed is noticed in step 3, which restores the manifest, or by the creator of the tag (see
`tag_files`). A restore by this library protects its version with a tag until it is finished. Before
steps 3 and 5 delete, they check that the location still has the same table: another one has
versions with the same numbers, and a copy has files with the same names. Two cases remain: another
program restores a version that is being removed, and commits after step 4; a table is replaced
between a check and the deletions.

Source:  the reference's cleanup.rs.
Differs: The reference deletes manifests and data files in no particular order, keeps only the
         tagged version of a consumer, and ignores the files of this library. This cleanup protects
         files of overlays and managed blobs by rejecting tables that have them, cleans up one
         branch at a time, and ignores unknown subfolders.
"""

from collections import Counter
from dataclasses import replace

from lance_stream.arguments import as_flag
from lance_stream.environment import MACHINE, Environment
from lance_stream.maintenance.cleanup.commits_in_progress import CommitsInProgress
from lance_stream.maintenance.cleanup.file_work import LOCAL, FileWork
from lance_stream.maintenance.cleanup.manifests import (
    check_are_manifests,
    read_detached,
    read_newest_first,
    read_other_branches,
)
from lance_stream.maintenance.cleanup.protections import (
    Protections,
    branches_by_origin,
    check_references,
    expired_consumers,
    expired_tags,
)
from lance_stream.maintenance.cleanup.removal import (
    check_is_still_there,
    delete_expired_tags,
    remove_versions,
)
from lance_stream.maintenance.cleanup.report import CleanupReport
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.maintenance.cleanup.selection import select_versions
from lance_stream.maintenance.cleanup.unreferenced_files import (
    UnreferencedFiles,
    latest_abandoned,
    list_nameable_files,
)
from lance_stream.maintenance.links import check_has_no_links
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.references import branch_by_its_file
from lance_stream.snapshot.store_clock import with_store_clock
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.named_files import FileKind
from lance_stream.table.paths import VERSIONS_DIRECTORY


def cleanup(
    table: TableVersion,
    rules: CleanupRules,
    *,
    is_dry_run: bool = False,
    work: FileWork = LOCAL,
    environment: Environment = MACHINE,
) -> CleanupReport:
    """Remove old versions, and the files that no remaining version references.

    Args:
        table: Any version.
        rules: What to remove.
        is_dry_run: Whether to remove nothing, and only report.
        work: Lists folders and deletes files, which this process has selected.
        environment: The clock. If it is ahead of the store's, the store's is used, except in a dry
            run, which writes nothing and so cannot detect this.

    Raises:
        NotFoundError: The table no longer exists.
        TableReplacedError: The location has another table, of which nothing was removed.
        InvalidInputError: The table's versions are published in an external manifest store that is
            not configured, or in another one.
        UnsupportedFeatureError: A version of the table or of a branch has an unsupported feature,
            so the files that it needs are unknown. Nothing was removed.
        BadDataError: A version, a tag or a branch is damaged. Nothing was removed.
        OSError: Something could not be listed or read. Versions may have been removed, but no file
            that a remaining version needs.
    """
    as_flag("dry_run", is_dry_run)
    table = _as_its_branch(newest_version_of(table))
    check_references(table.refs)
    table.log.check_may_follow(table.manifest)
    check_has_no_links(table.refs)
    if not is_dry_run:
        environment = with_store_clock(table.store, environment, may_be_behind=True)
    expired = expired_consumers(table, rules, environment)
    ignored = {*(consumer.tag for consumer in expired), *expired_tags(table.refs, environment)}
    branches = branches_by_origin(table.refs)
    versions = table.log.versions()
    commits = CommitsInProgress(table, rules, environment)
    protections = Protections(table.refs, ignored, branches)
    selection = select_versions(table, versions, rules, protections, commits, environment)
    files = UnreferencedFiles(
        list_nameable_files(table, work),
        selection.referenced,
        latest_abandoned(rules, environment),
    )
    removable = set(selection.removable)
    remaining = [version for version in versions if version not in removable]
    files.exclude(read_newest_first(table.log, remaining))
    files.exclude(read_detached(table.store))
    files.exclude(read_other_branches(table.refs))
    sizes = {file.path: file.size_bytes for file in table.store.list(VERSIONS_DIRECTORY)}
    check_are_manifests(table.store, sizes)
    removed = selection.removable
    if not is_dry_run:
        if ignored:
            check_is_still_there(table)
            delete_expired_tags(table.refs, expired, ignored)
        removed = remove_versions(table, selection, ignored, commits)
        new = sorted(set(table.log.versions()) - set(remaining))
        files.exclude(read_newest_first(table.log, new))
        files.exclude(read_other_branches(table.refs))
        paths = [file.path for _, file in files.files()]
        if paths:
            check_is_still_there(table)
            work.delete(table.store, paths)
    counts = Counter({FileKind.MANIFEST: len(removed)}) + Counter(
        identity.kind for identity, _ in files.files()
    )
    return CleanupReport(
        versions=tuple(removed),
        num_files={kind.value: counts[kind] for kind in FileKind if counts[kind]},
        size_bytes=sum(file.size_bytes for _, file in files.files())
        + sum(sizes.get(table.log.manifest_path(version), 0) for version in removed),
        protected=dict(selection.protected),
        expired_consumers=tuple(dict.fromkeys(consumer.name for consumer in expired)),
        is_dry_run=is_dry_run,
    )


def _as_its_branch(table: TableVersion) -> TableVersion:
    """Return a table with its branch, even if its manifests do not name the branch.

    Raises:
        OSError: The listing fails that shows whether the table is in a branch's folder.
    """
    branch = table.branch or branch_by_its_file(table.store)
    return replace(table, manifest=replace(table.manifest, branch=branch))
