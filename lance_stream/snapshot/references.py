"""References: the files of branches, and where tags and branches are stored.

    {table}/                                       the main branch
    {table}/tree/{branch}/                         a branch: its versions and new files
    {table}/_refs/tags/{tag}.json                  tags of the table and of all its branches
    {table}/_refs/branches/{branch}.json           the origin of each branch

    {
      "parentBranch": null,
      "parentVersion": 1,
      "identifier": {"version_mapping": [[1, "334cb3f05be64db4bfa12097018fae54"]]},
      "createAt": 1795339918,
      "manifestSize": 368,
      "metadata": {}
    }

A branch starts as a shallow clone: its first version has the number of the version that it was
created from, and references that version's files by a base path. Only the manifests of a branch
state its name: a directory named `tree/x` may be an independent table.

`maintenance.branches` creates and deletes branches, as the reference does.

Source:  files that the reference wrote, its refs.rs and branch_location.rs.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.storage.store import Store, create_if_absent
from lance_stream.table.paths import (
    BRANCHES_DIRECTORY,
    CLONED_FROM,
    FOLDERS,
    MAIN_BRANCH,
    TRANSACTIONS_DIRECTORY,
    TREE_DIRECTORY,
    VERSIONS_DIRECTORY,
    branch_directory,
    branch_file_path,
    parse_branch_file_path,
)

_log = logging.getLogger(__name__)

_TREE = f"/{TREE_DIRECTORY}/"


@dataclass(frozen=True, slots=True)
class Branch:
    """A separate history that starts at a version of another branch.

    Attributes:
        name: The name.
        parent: The branch from which it was created; None for the main branch.
        parent_version: The version from which it was created.
        created_at: When it was created, in UTC; None if its writer did not record it.
        metadata: The metadata that its writer stored.
        identifier: Distinguishes the branch from an earlier branch of the same name: for each of
            its ancestors and itself, the version from which it was created, and a random uuid.
    """

    name: str
    parent: str | None
    parent_version: int
    created_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    identifier: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Refs:
    """The references of a table, seen from one of its branches.

    Args:
        log: The versions of the branch.
        branch: The name of the branch; None for the main branch.
    """

    log: VersionLog
    branch: str | None = None

    @property
    def store(self) -> Store:
        """The store of the branch."""
        return self.log.store

    @cached_property
    def root(self) -> Store:
        """The store of the table: its tags, its branches, and the main branch.

        Raises:
            InvalidInputError: The branch is not stored in its table.
        """
        if self.branch is None:
            return self.store
        ending = f"/{branch_directory(self.branch)}"
        for root in _roots(self.store):
            if root.endswith(ending):
                return self.store.at_root(_root_as_in(self.store, root[: -len(ending)]))
        raise InvalidInputError(
            f"the manifests of {self.store.uri} state that it is the branch {self.branch!r} of a "
            f"table, but it is not in a folder {ending[1:]!r}: it was moved or copied, so the tags "
            "and branches of its table cannot be found. Open the original branch, or write the "
            "rows of this one to a new table"
        )

    def log_of(self, branch: str | None) -> VersionLog:
        """Return the version log of another branch of the same table, which need not exist.

        Raises:
            InvalidInputError: The name is not valid for a branch.
            UnsupportedFeatureError: The branch publishes its versions in an unknown way.
        """
        if branch == self.branch:
            return self.log
        root = self.root
        if branch is None:
            return self.log.for_store(root)
        parts = (root.root, branch_directory(branch))
        return self.log.for_store(root.at_root("/".join(filter(None, parts))))

    def of(self, branch: str | None) -> "Refs":
        """Return the references seen from another branch; see `log_of`."""
        return self if branch == self.branch else Refs(self.log_of(branch), branch)


def refs_of(log: VersionLog) -> Refs:
    """Return the references of the table or branch of a log.

    Manifests state whether it is a branch; they are read only if the path looks like one.

    Raises:
        NotFoundError: The table does not exist.
        BadDataError: The newest manifest is damaged.
    """
    may_be_branch = any(_TREE in root for root in _roots(log.store))
    return Refs(log, log.read_latest().branch if may_be_branch else None)


def branch_by_its_file(store: Store) -> str | None:
    """Return the name of the branch whose folder a store is, according to branch files.

    This finds branches whose manifests do not state their name, because their writer does not
    support branches. It returns None for an independent table in a folder named like a branch.
    """
    for root in _roots(store):
        offsets = [start for start in range(len(root)) if root.startswith(_TREE, start)]
        for offset in offsets:
            branch = root[offset + len(_TREE) :]
            table = store.at_root(_root_as_in(store, root[:offset]))
            files = (file.path for file in table.list(BRANCHES_DIRECTORY))
            if branch in map(parse_branch_file_path, files):
                return branch
    return None


def notes_on_missing_branch(log: VersionLog) -> Iterator[str]:
    """Yield a note with the branches of a table, if a location is that of a missing branch.

    Sends requests only if the location looks like that of a branch.
    """
    if not any(_TREE in root for root in _roots(log.store)):
        return
    with suppress(LanceStreamError, OSError):
        log.latest()
        return
    root, _, branch = _roots(log.store)[0].rpartition(_TREE)
    with suppress(LanceStreamError, OSError):
        table = log.for_store(log.store.at_root(_root_as_in(log.store, root)))
        table.latest()
        names = ", ".join(list_branches(Refs(table))) or "none"
        yield f"{table.store.uri} has no branch {branch!r}; existing branches: {names}"


def _roots(store: Store) -> tuple[str, ...]:
    """Return the paths of a store on its disk or in its bucket, which start with "/"."""
    root = f"/{store.root}".replace("//", "/")
    path = store.local_path("")
    return (root,) if path is None else (root, os.path.realpath(path))


def _root_as_in(store: Store, path: str) -> str:
    """Convert a path that starts with "/", or is empty, to the form of a store's root."""
    return path or "/" if store.root.startswith("/") else path[1:]


def as_branch(name: object) -> str | None:
    """Validate the name of a branch and return it; None for the main branch.

    Raises:
        InvalidInputError: The name is not valid for a branch.
    """
    if name is None or name == MAIN_BRANCH:
        return None
    if not isinstance(name, str):
        raise InvalidInputError(f"the name of a branch must be a string, not {name!r}")
    branch_directory(name)
    return name


def branch_uri(uri: str, branch: str | None) -> str:
    """Return the location of a branch, without requests.

    Args:
        uri: The location of the table.
        branch: The name of the branch; None or "main" for the main branch.

    Raises:
        InvalidInputError: The name is not valid for a branch.
    """
    name = as_branch(branch)
    if name is None:
        return uri
    path, separator, query = uri.partition("?") if uri.startswith("s3+ddb:") else (uri, "", "")
    return f"{path.rstrip('/')}/{branch_directory(name)}{separator}{query}"


# --- files of branches


def list_branches(refs: Refs) -> dict[str, Branch]:
    """Return all branches of a table by name, sorted by name.

    Damaged branch files are skipped and logged as warnings.
    """
    branches = {}
    for path, branch in read_branches(refs).items():
        if isinstance(branch, Branch):
            branches[branch.name] = branch
        else:
            _log.warning("skipped the branch file %s/%s: %s", refs.root.uri, path, branch)
    return dict(sorted(branches.items()))


def read_branches(refs: Refs) -> dict[str, Branch | Exception]:
    """Return the branch in each branch file, by path; an error for an unreadable file."""
    branches: dict[str, Branch | Exception] = {}
    for file in refs.root.list(BRANCHES_DIRECTORY):
        name = parse_branch_file_path(file.path)
        if name is None:
            continue
        try:
            branch_directory(name)
            branches[file.path] = _as_branch(name, json.loads(refs.root.read(file.path)))
        except NotFoundError:
            if refs.root.exists(file.path):
                raise  # otherwise it was deleted since it was listed
        except (ValueError, RecursionError, CorruptDataError) as error:
            branches[file.path] = error
    return branches


def _as_branch(name: str, content: Any) -> Branch:
    """Parse the content of a branch file.

    Raises:
        CorruptDataError: The content is not that of a branch file.
    """
    if not isinstance(content, dict):
        raise CorruptDataError(
            f"the file of the branch {name!r} is not a JSON object: {content!r:.200}"
        )
    parent, version = content.get("parentBranch"), content.get("parentVersion")
    created_at, metadata = content.get("createAt"), content.get("metadata", {})
    if (
        not isinstance(version, int)
        or isinstance(version, bool)
        or not (parent is None or isinstance(parent, str))
        or not isinstance(metadata, dict)
    ):
        raise CorruptDataError(
            f"the file of the branch {name!r} does not state the version and branch from which it "
            f"was created: {content!r:.200}"
        )
    created = moment_at(created_at * 1_000_000) if isinstance(created_at, int) else None
    return Branch(
        name,
        None if parent == MAIN_BRANCH else parent,
        version,
        created,
        {str(key): str(value) for key, value in metadata.items()},
        _as_identifier(content.get("identifier")),
    )


def _as_identifier(content: Any) -> tuple[tuple[int, str], ...]:
    """Return the identifier in a branch file; empty if it has none, as with old writers."""
    pairs = content.get("version_mapping", ()) if isinstance(content, dict) else ()
    try:
        return tuple((int(version), str(uuid)) for version, uuid in pairs)
    except (TypeError, ValueError, OverflowError):
        return ()


def find_branch(refs: Refs, name: str) -> Branch | None:
    """Return a branch according to its file; None if the file does not exist.

    Raises:
        CorruptDataError: The file is damaged.
    """
    path = branch_file_path(name)
    try:
        data = refs.root.read(path)
    except NotFoundError:
        return None
    try:
        return _as_branch(name, json.loads(data))
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{refs.root.uri}/{path} is not JSON: {error}") from None


def create_branch_file(refs: Refs, branch: Branch, manifest_size: int) -> bool:
    """Create the file of a branch; return False if the file exists.

    Args:
        refs: The references of the table.
        branch: The content.
        manifest_size: The size in bytes of the manifest of the version from which the branch is
            created.
    """
    created_at = branch.created_at
    content = {
        "parentBranch": branch.parent,
        "identifier": {"version_mapping": [list(pair) for pair in branch.identifier]},
        "parentVersion": branch.parent_version,
        "createAt": 0 if created_at is None else int(created_at.timestamp()),
        "manifestSize": manifest_size,
        "metadata": dict(branch.metadata),
    }
    data = json.dumps(content, indent=2).encode()
    return create_if_absent(refs.root, branch_file_path(branch.name), data)


def delete_branch_file(refs: Refs, name: str) -> bytes | None:
    """Delete the file of a branch and return its bytes; None if it does not exist."""
    path = branch_file_path(name)
    try:
        data = refs.root.read(path)
    except NotFoundError:
        return None
    refs.root.delete(path)
    return data


def files_of_branch(refs: Refs, name: str) -> list[str]:
    """Return the paths of all files of a branch, relative to the table's directory.

    Files of other branches in its folder are left out, including those of half-created and
    half-deleted branches. If the branch `x/data` is in the data folder of the branch `x`, the files
    of `x` are left out.
    """
    directory = branch_directory(name)
    folders = tuple(f"{directory}/{folder}/" for folder in FOLDERS)
    files = [file.path for file in refs.root.list(directory) if file.path.startswith(folders)]
    inner = {
        path[:stop]
        for path in files
        for mark in (f"/{VERSIONS_DIRECTORY}/", f"/{TRANSACTIONS_DIRECTORY}/", f"/{CLONED_FROM}")
        if (stop := path.rfind(mark)) > len(directory)
    }
    others = [*inner, *(branch_directory(branch) for branch in list_branches(refs))]
    inside = tuple(
        f"{other}/{folder}/"
        for other in others
        if other.startswith(f"{directory}/")
        for folder in FOLDERS
    )
    return [path for path in files if not path.startswith(inside)]


def other_branches(refs: Refs) -> Iterator[tuple[str | None, bool]]:
    """Yield all other branches of a table, including half-created and half-deleted ones.

    Yields:
        The name, None for the main branch; and whether a branch file states that it has versions.

    Raises:
        CorruptDataError: A branch file is damaged, or a folder with versions has a name that is
            not valid for a branch.
    """
    names: dict[str, bool] = {}
    for folder in _folders_with_versions(refs.root):
        try:
            branch_directory(folder)
        except InvalidInputError as error:
            raise CorruptDataError(
                f"{refs.root.uri}/{TREE_DIRECTORY}/{folder} has versions, but its name is not "
                "valid for a branch"
            ) from error
        names[folder] = False
    for path, branch in read_branches(refs).items():
        if isinstance(branch, Exception):
            raise CorruptDataError(
                f"{refs.root.uri}/{path}, which should state from which version a branch was "
                f"created, cannot be read: {branch}. Repair it, or delete it if the branch does "
                "not exist"
            ) from branch
        names[branch.name] = True
    if refs.branch is not None:
        yield None, True
    yield from ((name, other) for name, other in names.items() if name != refs.branch)


def _folders_with_versions(root: Store) -> set[str]:
    """Return the folders below `tree` that contain manifests."""
    mark = f"/{VERSIONS_DIRECTORY}/"
    start = len(TREE_DIRECTORY) + 1
    stops = ((file.path, file.path.rfind(mark)) for file in root.list(TREE_DIRECTORY))
    return {path[start:stop] for path, stop in stops if stop > start}
