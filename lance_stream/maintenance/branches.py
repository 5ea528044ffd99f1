"""Creates and deletes branches; implements `ds.branches`.

    create    1  protect the version with a tag, and check that its branch is not being deleted
              2  publish the branch's first version in its folder (see `commit.cloning`)
              3  create its file below `_refs`: from here on, the branch exists
              4  delete the tag
    delete    1  check that no tag and no other branch needs it; those of killed operations expire
              2  delete its file: from here on, the branch does not exist
              3  check again; if something needs the branch now, restore the file
              4  delete the files in its folder, manifests first, except those of other branches

Both can be repeated if they are killed after any step. From step 2 of a branch's creation on, a
cleanup keeps the files that the branch needs. It keeps the version from which the branch is created
because of the tag, and later because of the branch's file.

Source:  the reference's refs.rs; measured.
Differs: The reference does not delete the versions of a deleted branch if another branch is in its
         folder, and then cannot create it again.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from lance_stream.commit.cloning import CloneSource, publish_clone
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError
from lance_stream.maintenance.cleanup.protections import expired_tags
from lance_stream.maintenance.cleanup.removal import delete_expired_tags
from lance_stream.maintenance.links import check_no_links
from lance_stream.snapshot import references
from lance_stream.snapshot.references import Branch, Refs, as_branch, find_branch
from lance_stream.snapshot.resolving import VersionSpec, checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import (
    HOLD_PREFIX,
    hold_version,
    list_tags,
    manifest_size,
)
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.table.paths import (
    BRANCHES_DIRECTORY,
    VERSIONS_DIRECTORY,
    branch_directory,
    branch_file_path,
)
from lance_stream.upsert.tombstone_files import read_bytes


class Branches:
    """The branches of a table: histories separate from the main one.

    Open one by `open_dataset(uri, branch="dev")`, `ds.checkout(("dev", None))`, or by its folder
    inside the table's, `tree/dev`. It is read, written, followed, tagged and cleaned up like a
    table. The first version of a branch has the number of the version from which it was created,
    and references the files of that version: creating a branch copies no rows.

    Args:
        table: A version of the table, or of a branch.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"<Branches of {self._table.uri!r}>"

    def list(self) -> dict[str, Branch]:
        """Return all branches by name, in the order of their names.

        Files that do not describe a branch are skipped, with a warning that names them.
        """
        return references.list_branches(self._table.refs)

    def create(self, name: str, version: VersionSpec = None) -> Branch:
        """Create a branch.

        The branch inherits the ledger, so a stream that continues on the branch writes no batch
        twice. As in the reference, it does not inherit other entries of the config.

        Args:
            name: Letters, digits, ".", "-" and "_", with "/" between parts.
            version: The version to start from: a number in this dataset's branch, a tag, a
                timestamp, or a branch and one of its versions, as in `("dev", 3)`. None for this
                dataset's version.

        Returns:
            The new branch.

        Raises:
            InvalidInputError: The branch already exists, the name is invalid, or the versions of
                the table are published in a manifest store that is not configured.
            NotFoundError: The version does not exist.
            UnsupportedFeatureError: The version has a feature that this library cannot write.
        """
        return create_branch(self._table, name, version)

    def delete(self, name: str) -> None:
        """Delete a branch with all its versions and files.

        Stop its writers first: versions that they commit later would be lost. A clone that was
        created from the branch without a tag is not detected, and loses its files.

        Args:
            name: The name of the branch. If its creation or deletion was interrupted, the
                remaining files are deleted.

        Raises:
            NotFoundError: There is no such branch; the message lists the existing ones.
            InvalidInputError: A tag, a consumer or another branch needs the branch; it is the main
                branch; or its versions are published in a manifest store that is not configured.
            CorruptDataError: The file of a branch is damaged, so it may need this one.
            UnsupportedFeatureError: Its folder is a link: its files may be another table's.
        """
        delete_branch(self._table.refs, name)


def create_branch(
    table: TableVersion,
    name: str,
    version: VersionSpec = None,
    environment: Environment = MACHINE,
) -> Branch:
    """Create a branch; see `Branches.create`."""
    new = _new_name(name)
    start = table if version is None else checkout(table, version)
    if not start.version:
        raise NotFoundError(f"there is no table at {table.uri} from which to create a branch")
    refs = start.refs
    refs.log.check_may_follow(start.manifest)
    _check_is_free(refs, new)
    log = refs.log_of(new)
    with hold_version(refs, start.version):
        parent = _parent_of(refs)
        source = CloneSource(
            start.store,
            start.manifest,
            start.files.base_paths,
            start.location,
            partial(read_bytes, start.files),
        )
        publish_clone(log, source, new, environment)
        branch = Branch(
            new,
            refs.branch,
            start.version,
            moment_at(environment.now_nanos() // 10**9 * 10**6),
            identifier=(
                *(parent.identifier if parent else ()),
                (start.version, uuid.uuid4().hex),
            ),
        )
        size = manifest_size(start.store, start.version)
        if not references.create_branch_file(refs, branch, size):
            raise _exists_error(new)
    return branch


def _new_name(name: object) -> str:
    branch = as_branch(name)
    if branch is None:
        raise InvalidInputError("'main' always exists: choose another name for the new branch")
    if branch.startswith("."):
        raise InvalidInputError(
            f"{branch!r} cannot be the name of a new branch: its file would be hidden"
        )
    return branch


def _check_is_free(refs: Refs, name: str) -> None:
    """Raise if a branch of a name exists.

    If only its first version exists, its creation was interrupted, and can be completed.

    Raises:
        InvalidInputError: The branch, or remaining files of it, exist.
    """
    if find_branch(refs, name) is not None:
        raise _exists_error(name)
    log = refs.log_of(name)
    try:
        versions = log.versions()
    except NotFoundError:
        return
    if len(versions) > 1:
        raise InvalidInputError(
            f"{log.store.uri} has versions of a branch {name!r} that was not completely deleted. "
            f"Delete the remaining files with ds.branches.delete({name!r}), and create the branch "
            "again"
        )


def _exists_error(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"the branch {name!r} already exists: open it with open_dataset(uri, branch={name!r}), or "
        f"delete it with ds.branches.delete({name!r})"
    )


def _parent_of(refs: Refs) -> Branch | None:
    """Return the branch from which a new branch is created; None for the main branch.

    Raises:
        NotFoundError: The branch is being deleted, or was not completely created.
    """
    if refs.branch is None:
        return None
    parent = find_branch(refs, refs.branch)
    if parent is None:
        raise NotFoundError(
            f"the branch {refs.branch!r} of {refs.root.uri} is not completely created, or is being "
            "deleted: no branch can be created from it"
        )
    return parent


def delete_branch(refs: Refs, name: str, environment: Environment = MACHINE) -> None:
    """Delete a branch; see `Branches.delete`."""
    branch = as_branch(name)
    if branch is None:
        raise InvalidInputError("the main branch is the table itself, and cannot be deleted")
    check_no_links(refs.root, (branch_directory(branch), BRANCHES_DIRECTORY))
    branch_refs = Refs(refs.log_of(branch), branch)
    if find_branch(refs, branch) is None:
        _check_has_remains(branch_refs)
    with suppress(NotFoundError, BadDataError):  # without a version, or with a damaged one
        branch_refs.log.check_may_follow(branch_refs.log.read_latest())
    delete_expired_tags(branch_refs, [], expired_tags(branch_refs, environment))
    _check_is_not_needed(refs, branch)
    branch_file = references.delete_branch_file(refs, branch)
    try:
        _check_is_not_needed(refs, branch)
    except InvalidInputError:
        if branch_file is not None:
            refs.root.write(branch_file_path(branch), branch_file)
        raise
    for path in _files(refs, branch):
        refs.root.delete(path)
    if branch_refs.log.external is not None:
        branch_refs.log.external.forget()


def _check_has_remains(refs: Refs) -> None:
    """Raise unless the folder of a branch without a branch file has remaining files of it.

    Args:
        refs: The references of the branch.

    Raises:
        NotFoundError: The folder has no files.
        InvalidInputError: The folder is an independent table.
    """
    assert refs.branch is not None
    if not _files(refs, refs.branch):
        names = ", ".join(references.list_branches(refs))
        existing = f"its branches are: {names}" if names else "it has no branches"
        raise NotFoundError(
            f"the table at {refs.root.uri} has no branch {refs.branch!r}; {existing}"
        )
    try:
        newest = refs.log.read_latest()
    except NotFoundError:
        return
    if newest.branch != refs.branch:
        raise InvalidInputError(
            f"{refs.store.uri} has a table whose versions do not name the branch {refs.branch!r}, "
            f"and {refs.root.uri}/{branch_file_path(refs.branch)} does not exist: it may be an "
            "independent table, so it was not deleted. If it is not one, delete the folder"
        )


def _files(refs: Refs, branch: str) -> Sequence[str]:
    """Return the files of a branch, manifests first: without them, no program reads the others."""
    files = references.files_of_branch(refs, branch)
    manifests = f"{branch_directory(branch)}/{VERSIONS_DIRECTORY}/"
    return sorted(files, key=lambda path: (not path.startswith(manifests), path))


def _check_is_not_needed(refs: Refs, name: str) -> None:
    """Raise if a tag or another branch needs a branch.

    Raises:
        InvalidInputError: A tag or branch needs it; the message names all of them.
        CorruptDataError: The file of a branch is damaged.
    """
    tags = [f"the tag {tag.name!r}" for tag in list_tags(refs).values() if tag.branch == name]
    folder = branch_directory(name)
    branches = []
    for other, has_file in references.other_branches(Refs(refs.log_of(name), name)):
        if other is None:
            continue
        branch_file = find_branch(refs, other) if has_file else None
        if branch_file is not None and branch_file.parent == name:
            branches.append(f"the branch {other!r}")
        elif not has_file and _uses_folder(refs.of(other), folder):
            branches.append(f"the unfinished branch {other!r}")
    if tags or branches:
        hint = (
            f". A tag {HOLD_PREFIX}* belongs to an operation that is running, or was killed"
            if any(HOLD_PREFIX in tag for tag in tags)
            else ""
        )
        raise InvalidInputError(
            f"the branch {name!r} cannot be deleted, because {', '.join([*tags, *branches])} "
            f"need{'s' if len(tags + branches) == 1 else ''} it. Delete "
            f"{'that' if len(tags + branches) == 1 else 'those'} first: tags with "
            "ds.tags.delete(name), branches with ds.branches.delete(name)"
            f"{hint}"
        )


def _uses_folder(refs: Refs, folder: str) -> bool:
    """Return whether the newest version of a branch names files in another branch's folder."""
    try:
        manifest = refs.log.read_latest()
    except NotFoundError:
        return False
    return any(
        base_path.path.rstrip("/").endswith(f"/{folder}") for base_path in manifest.base_paths
    )
