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
number of newest ones; tagged ones; those from which a branch was created; and for each consumer the
version that it has finished and all after it, which it has yet to read.

A cleanup fails if it cannot list, read or decode something: a manifest, a tag, a branch, an unknown
kind of reference. It also fails if a version is listed but does not exist. A transaction file with
an unknown name counts as a commit in progress.

Unreferenced files may be about to be committed, so they must have the age `GRACE`, as in the
reference, unless the caller knows that there are no writers. A file that a removed version
referenced is not about to be committed, and is deleted immediately.

If a cleanup is killed at any point, the table is consistent: manifests are deleted before the files
that they reference, so every listed version can be read. A later cleanup deletes the remaining
files.

Other processes continue meanwhile. Step 4 finds what they commit. A tag on a version that is being
removed is noticed in step 3, which restores the manifest, or by the creator of the tag (see
`tag_files`). A restore by this library protects its version with a tag until it is finished. One
case remains: another program restores a version that is being removed, and commits after step 4.

A writer publishes the version after the one that it has read. If another writer has published this
version meanwhile, there is a conflict. But if this version was then removed, its name is free
again, and the writer would publish an old version number. So recent versions are kept while a
commit that may have started before them is in progress: while there is a recent transaction file
that no version references. The committer writes this file before it reads the newest version.

Source:  the reference's cleanup.rs.
Differs: The reference deletes manifests and data files in no particular order, keeps only the
         tagged version of a consumer, and ignores the files of this library. This cleanup protects
         files of overlays and managed blobs by rejecting tables that have them, cleans up one
         branch at a time, and ignores unknown subfolders.
"""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias, TypeVar

from lance_stream.commit.version_log import VersionLog
from lance_stream.durations import parse_age
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.keys.file_columns import chance_of
from lance_stream.keys.index.run_files import is_useless
from lance_stream.maintenance.consumers import (
    Consumer,
    abandoned_consumers,
    consumer_of,
    forget,
    is_consumers,
)
from lance_stream.maintenance.links import check_is_at_home
from lance_stream.sizes import size_text
from lance_stream.snapshot.references import Refs, branch_by_its_file, other_branches, read_branches
from lance_stream.snapshot.store_clock import with_store_clock
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import HOLD_PREFIX, Tag, delete_tag, read_tags
from lance_stream.snapshot.timestamps import nanos_of
from lance_stream.storage.store import NUM_READERS, Store, StoredFile, is_reached_through_link
from lance_stream.table.detached import check_is_attached
from lance_stream.table.feature_flags import check_writable
from lance_stream.table.manifest import BasePath, Manifest, decode_manifest
from lance_stream.table.named_files import FOLDERS, FileKind, Nameable, nameable, names_of
from lance_stream.table.paths import (
    BRANCHES_DIRECTORY,
    REFS_DIRECTORY,
    TAGS_DIRECTORY,
    TRANSACTIONS_DIRECTORY,
    VERSIONS_DIRECTORY,
    parse_detached_manifest_name,
    parse_manifest_name,
    parse_transaction_file_name,
    transaction_path,
)
from lance_stream.threads import map_ahead

GRACE: Final = timedelta(days=7)
"""The age from which a file is certainly not about to be committed."""

DEFAULT_AGE: Final = timedelta(days=14)
"""The default age of versions to remove."""

COMMIT_GRACE: Final = timedelta(minutes=10)
"""The maximum duration of a commit, from writing the transaction file."""

ONGOING: Final = "a commit in progress"
"""The name in reports for versions that a writer may be about to republish; not valid for a tag."""

BRANCH: Final = "branch "
"""The prefix in reports for branches that protect versions; not valid for a tag."""

_VERSIONS_PER_STEP: Final = 64

_READ_AHEAD: Final = 16
"""The maximum number of manifests that are read ahead."""

T = TypeVar("T")
U = TypeVar("U")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupRules:
    """What to remove.

    Attributes:
        older_than: The minimum age of a version to remove; None for any age.
        retain_versions: The number of newest versions to keep, regardless of age; at least 1.
        delete_unverified: Whether to delete never-referenced files of any age, because the caller
            knows that there are no writers.
        expire_consumers: The time without progress after which a consumer with unread versions
            expires and its tag is deleted; None for never.
    """

    older_than: timedelta | None = DEFAULT_AGE
    retain_versions: int = 1
    delete_unverified: bool = False
    expire_consumers: timedelta | None = None

    def __post_init__(self) -> None:
        if self.older_than is not None and self.older_than < timedelta(0):
            raise InvalidInputError(f"versions cannot be older than {self.older_than}")
        number = self.retain_versions
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidInputError(
                f"retain_versions must be an integer of at least 1, not {number!r}: the newest "
                "version is always kept"
            )


def as_rules(
    older_than: str | timedelta | None,
    retain_versions: int | None,
    *,
    delete_unverified: bool,
    expire_consumers: str | timedelta | None,
) -> CleanupRules:
    """Return the rules for a user's arguments; see `Dataset.cleanup`.

    Raises:
        InvalidInputError: An age or number is invalid.
    """
    age = DEFAULT_AGE if retain_versions is None else None
    return CleanupRules(
        age if older_than is None else parse_age(older_than, may_be_nothing=True),
        1 if retain_versions is None else retain_versions,
        delete_unverified,
        None if expire_consumers is None else parse_age(expire_consumers),
    )


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What was removed; for a dry run, what would be removed.

    Attributes:
        versions: The versions, ascending.
        num_files: The number of files by kind (the values of `FileKind`).
        size_bytes: The total size of the files.
        holds: The number of versions that were protected, by tag, branch (`BRANCH` and its name),
            or `ONGOING`.
        expired_consumers: The consumers that have expired.
        is_dry_run: Whether nothing was removed.
    """

    versions: tuple[int, ...]
    num_files: Mapping[str, int]
    size_bytes: int
    holds: Mapping[str, int]
    expired_consumers: tuple[str, ...]
    is_dry_run: bool

    def __str__(self) -> str:
        num_files = sum(self.num_files.values())
        lines = [
            f"{'would remove' if self.is_dry_run else 'removed'} "
            f"{len(self.versions)} version{'' if len(self.versions) == 1 else 's'}, "
            f"{num_files} file{'' if num_files == 1 else 's'}, {size_text(self.size_bytes)}",
            *(f"  {count} {kind}" for kind, count in self.num_files.items()),
            *(f"  kept {count} for {_holder(name)}" for name, count in self.holds.items()),
            *(
                f"  expired consumer: {expired_consumer}"
                for expired_consumer in self.expired_consumers
            ),
        ]
        return "\n".join(lines)


def _holder(name: str) -> str:
    if name.startswith(BRANCH):
        return f"the {name}"
    if is_consumers(name):
        return f"the consumer {consumer_of(name)}"
    return name if name == ONGOING else f"the tag {name}"


@dataclass(frozen=True, slots=True)
class FileWork:
    """The part of a cleanup that the tasks of a cluster can do.

    Attributes:
        list_folders: Returns the files below each folder of a store; raises an error rather than
            returning only a part of them.
        delete: Deletes files of a store, in any order. Some may no longer exist.
    """

    list_folders: Callable[[Store, Sequence[str]], Iterable[Iterable[StoredFile]]]
    delete: Callable[[Store, Sequence[str]], None]


def list_locally(store: Store, folders: Sequence[str]) -> Iterator[list[StoredFile]]:
    """List folders in this process, one after another."""
    yield from map(store.list, folders)


def delete_locally(store: Store, paths: Sequence[str]) -> None:
    """Delete files in this process, in `num_readers` threads."""
    with ThreadPoolExecutor(
        store.num_readers, thread_name_prefix="lance-stream-cleanup"
    ) as threads:
        for _ in threads.map(store.delete, paths):
            pass


LOCAL: Final = FileWork(list_locally, delete_locally)
"""All work in this process."""


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
        InvalidInputError: The table's versions are published in an external manifest store that is
            not configured, or in another one.
        UnsupportedFeatureError: A version of the table or of a branch has an unsupported feature,
            so the files that it needs are unknown. Nothing was removed.
        BadDataError: A version, a tag or a branch is damaged. Nothing was removed.
        OSError: Something could not be listed or read. Versions may have been removed, but no file
            that a remaining version needs.
    """
    table = _as_its_branch(table)
    check_is_attached(table.version)
    _check_references(table.refs)
    table.log.check_may_follow(table.manifest)
    check_is_at_home(table.refs)
    if not is_dry_run:
        environment = with_store_clock(table.store, environment)
    expired = _expired_consumers(table, rules, environment)
    ignored = {*(consumer.tag for consumer in expired), *_expired_tags(table.refs, environment)}
    branches_by_version = _branches_by_origin(table.refs)
    versions = table.log.versions()
    ongoing = _OngoingCommits(table, rules, environment)
    selection = _select_versions(
        table, versions, rules, ignored, branches_by_version, ongoing, environment
    )
    leftovers = _Leftovers(
        _list_files(table, work), selection.named, _latest_abandoned(rules, environment)
    )
    removable = set(selection.removable)
    remaining = [version for version in versions if version not in removable]
    leftovers.exclude(_read_newest_first(table.log, remaining))
    leftovers.exclude(_detached_versions(table.store))
    leftovers.exclude(_of_other_branches(table.refs))
    sizes = {file.path: file.size_bytes for file in table.store.list(VERSIONS_DIRECTORY)}
    _check_are_manifests(table.store, sizes)
    removed = selection.removable
    if not is_dry_run:
        _delete_expired_tags(table.refs, expired, ignored)
        removed = _remove_versions(table, selection, ignored, ongoing)
        new = sorted(set(table.log.versions()) - set(remaining))
        leftovers.exclude(_read_newest_first(table.log, new))
        leftovers.exclude(_of_other_branches(table.refs))
        work.delete(table.store, [file.path for _, file in leftovers.files()])
    counts = Counter({FileKind.MANIFEST: len(removed)}) + Counter(
        what.kind for what, _ in leftovers.files()
    )
    return CleanupReport(
        versions=tuple(removed),
        num_files={kind.value: counts[kind] for kind in FileKind if counts[kind]},
        size_bytes=sum(file.size_bytes for _, file in leftovers.files())
        + sum(sizes.get(table.log.manifest_path(version), 0) for version in removed),
        holds=dict(selection.holds),
        expired_consumers=tuple(dict.fromkeys(consumer.name for consumer in expired)),
        is_dry_run=is_dry_run,
    )


def _delete_expired_tags(refs: Refs, expired: Iterable[Consumer], ignored: Collection[str]) -> None:
    """Delete the tags of expired consumers and of killed operations."""
    for consumer in expired:
        forget(refs, consumer)
    for tag in ignored:
        with suppress(NotFoundError):
            if not is_consumers(tag):
                delete_tag(refs, tag)


def _as_its_branch(table: TableVersion) -> TableVersion:
    """Return a table with its branch, even if its manifests do not name the branch.

    Raises:
        OSError: The listing fails that shows whether the table is in a branch's folder.
    """
    branch = table.branch or branch_by_its_file(table.store)
    return replace(table, manifest=replace(table.manifest, branch=branch))


def _check_references(refs: Refs) -> None:
    """Check that only tags and branches can protect versions.

    Raises:
        UnsupportedFeatureError: There is an unknown kind of reference.
    """
    directories = (f"{TAGS_DIRECTORY}/", f"{BRANCHES_DIRECTORY}/")
    for file in refs.root.list(REFS_DIRECTORY):
        if not file.path.startswith(directories) and not file.path.rpartition("/")[2].startswith(
            "."
        ):
            raise UnsupportedFeatureError(
                f"{refs.root.uri}/{file.path} is neither a tag nor a branch, and may protect "
                "versions. Nothing was removed. Clean up the table with the program that wrote it, "
                "or delete it if it is not needed"
            )


# --- what to remove


class _Protections:
    """The tags and branches that protect a version, and consumers, which protect later ones, too.

    Args:
        refs: The references of the table or branch.
        ignored: Expired tags.
        branches_by_version: The branches that were created from this branch, by version.

    Raises:
        CorruptDataError: A tag is damaged.
    """

    def __init__(
        self, refs: Refs, ignored: Collection[str], branches_by_version: Mapping[int, Sequence[str]]
    ) -> None:
        self._tags: dict[int, list[str]] = defaultdict(list)
        self._consumers: dict[str, int] = {}
        for tag in _tags_of(refs):
            if tag.name in ignored:
                continue
            if is_consumers(tag.name):
                first = min(tag.version, self._consumers.get(tag.name, tag.version))
                self._consumers[tag.name] = first
            else:
                self._tags[tag.version].append(tag.name)
        for version, names in branches_by_version.items():
            self._tags[version] += names

    def of(self, version: int) -> list[str]:
        """Return the names of what protects a version."""
        consumers = [name for name, start in self._consumers.items() if version >= start]
        return self._tags.get(version, []) + consumers


def _branches_by_origin(refs: Refs) -> dict[int, list[str]]:
    """Return the names of the branches that were created from this branch, by version.

    Raises:
        CorruptDataError: A branch is damaged.
    """
    branches: dict[int, list[str]] = defaultdict(list)
    for path, branch in read_branches(refs).items():
        if isinstance(branch, Exception):
            raise _unreadable_error(f"{refs.root.uri}/{path}", "branch", branch)
        if branch.parent == refs.branch:
            branches[branch.parent_version].append(f"{BRANCH}{branch.name}")
    return branches


def _tags_of(refs: Refs) -> list[Tag]:
    """Return the tags on versions of a branch.

    Raises:
        CorruptDataError: A possible tag is damaged.
    """
    listing = read_tags(refs)
    for path, error in listing.unreadable.items():
        raise _unreadable_error(path, "tag", error)
    return [tag for tag in listing.tags if tag.branch == refs.branch]


def _unreadable_error(path: str, what: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(
        f"{path} looks like a {what}, but cannot be read: {error}. It may protect a version, so "
        f"nothing more was removed. Repair it, or delete it if it is not a {what}"
    )


class _OngoingCommits:
    """The commits that may be in progress.

    Args:
        table: Any version.
        rules: Whether there may be writers.
        environment: The clock.
    """

    def __init__(self, table: TableVersion, rules: CleanupRules, environment: Environment) -> None:
        self._table = table
        self._is_checked = not rules.delete_unverified
        self._latest = environment.now_nanos() / 1e9 - COMMIT_GRACE.total_seconds()
        files = table.store.list(VERSIONS_DIRECTORY) if self._is_checked else []
        self._young = {file.path for file in files if file.modified > self._latest}

    def hold_after(self, versions: Sequence[int], removed: Collection[str]) -> float:
        """Return the version after which all versions must be kept; infinity if there is none.

        Only recent versions can be published again: a writer that read the newest version longer
        ago has finished or failed.

        Args:
            versions: The versions that were selected for removal.
            removed: The names of transaction files of removed versions.
        """
        path = self._table.log.manifest_path
        if not self._is_checked or not any(path(version) in self._young for version in versions):
            return math.inf
        started = {
            file.path: read_version
            for file in self._table.store.list(TRANSACTIONS_DIRECTORY)
            if file.modified > self._latest
            and file.path not in removed
            and file.path.endswith(".txn")
            and (read_version := _read_version(file.path)) < versions[-1]
        }
        # The newest first: most transactions of the last minutes belong to the last versions.
        for version in reversed(self._table.log.versions() if started else []):
            if version <= min(started.values(), default=math.inf):
                break
            with suppress(NotFoundError):
                started.pop(_transaction_of(self._table.log.read(version)), None)
        return min(started.values(), default=math.inf)


def _read_version(path: str) -> int:
    """Return the version that a transaction was planned on; 0 if unknown."""
    parsed = parse_transaction_file_name(path.rpartition("/")[2])
    return 0 if parsed is None else parsed[0]


def _transaction_of(manifest: Manifest) -> str:
    return transaction_path(manifest.transaction_file) if manifest.transaction_file else ""


@dataclass(frozen=True, slots=True)
class _Selection:
    """The versions to remove.

    Attributes:
        removable: The versions, ascending.
        named: The names of all files that they reference.
        holds: The number of versions that each tag or branch protects.
    """

    removable: list[int]
    named: set[str]
    holds: dict[str, int]


def _expired_consumers(
    table: TableVersion, rules: CleanupRules, environment: Environment
) -> list[Consumer]:
    if rules.expire_consumers is None:
        return []
    return abandoned_consumers(table, rules.expire_consumers, environment)


def _expired_tags(refs: Refs, environment: Environment) -> list[str]:
    """Return the tags of operations that were killed."""
    latest = environment.now_nanos() - GRACE // timedelta(microseconds=1) * 1000
    return [
        tag.name
        for tag in _tags_of(refs)
        if tag.name.startswith(HOLD_PREFIX)
        and tag.updated_at is not None
        and nanos_of(tag.updated_at) <= latest
    ]


def _select_versions(
    table: TableVersion,
    versions: Sequence[int],
    rules: CleanupRules,
    ignored: Collection[str],
    branches_by_version: Mapping[int, Sequence[str]],
    ongoing: _OngoingCommits,
    environment: Environment,
) -> _Selection:
    """Select the versions to remove, with the files that they reference.

    Args:
        table: Any version.
        versions: All versions, ascending.
        rules: What to remove.
        ignored: Expired tags.
        branches_by_version: The branches that were created from this branch, by version.
        ongoing: The commits in progress.
        environment: The clock.
    """
    holds = _Protections(table.refs, ignored, branches_by_version)
    age = rules.older_than
    latest = (
        None if age is None else environment.now_nanos() - age // timedelta(microseconds=1) * 1000
    )
    selection = _Selection([], set(), defaultdict(int))
    seen: _NamesByBase = defaultdict(set)
    read = partial(_read_if_there, table.log)
    candidates = versions[: -rules.retain_versions]
    for version, manifest in zip(
        candidates, _map_ahead(table.store, read, candidates), strict=False
    ):
        if manifest is None:
            continue  # removed by another cleanup
        if latest is not None and _committed_at(table, manifest) > latest:
            break
        tags = holds.of(version)
        for tag in tags:
            selection.holds[tag] += 1
        if not tags:
            check_writable(manifest)
            selection.removable.append(version)
            selection.named.update(_names_of(manifest, seen, with_bases=False))
    last = ongoing.hold_after(selection.removable, ())
    removable = [version for version in selection.removable if version <= last]
    if len(removable) < len(selection.removable):
        selection.holds[ONGOING] = len(selection.removable) - len(removable)
    return replace(selection, removable=removable)


def _committed_at(table: TableVersion, manifest: Manifest) -> int:
    """Return the time of a version's commit, in nanoseconds since 1970-01-01 UTC."""
    if manifest.timestamp_nanos is not None:
        return manifest.timestamp_nanos
    path = table.log.manifest_path(manifest.version)
    files = table.store.list(VERSIONS_DIRECTORY)
    return max((int(file.modified * 1e9) for file in files if file.path == path), default=0)


_NamesByBase: TypeAlias = defaultdict[Sequence[BasePath], set[bytes]]
"""The fragments whose file names have been read, by the base paths of the versions."""


def _names_of(manifest: Manifest, seen: _NamesByBase, *, with_bases: bool = True) -> Iterator[str]:
    try:
        yield from names_of(manifest, seen[manifest.base_paths], with_bases=with_bases)
    except BadDataError as error:
        error.add_note(f"the files that version {manifest.version} needs are unknown")
        raise


def _latest_abandoned(rules: CleanupRules, environment: Environment) -> float:
    """Return the latest write time of a file that is certainly not about to be committed."""
    if rules.delete_unverified:
        return float("inf")
    return environment.now_nanos() / 1e9 - GRACE.total_seconds()


class _Leftovers:
    """The files to delete, as far as known.

    Args:
        files: All files of the table that a version may name, with their kinds.
        named: The names that the removed versions reference.
        latest_abandoned: The latest write time, in seconds since 1970-01-01 UTC, of a
            never-referenced file to delete.
    """

    def __init__(
        self,
        files: Iterable[tuple[Nameable, StoredFile]],
        named: set[str],
        latest_abandoned: float,
    ) -> None:
        self._by_name: dict[str | None, list[tuple[Nameable, StoredFile]]] = defaultdict(list)
        for what, file in files:
            is_abandoned = what.is_certain and file.modified <= latest_abandoned
            if is_abandoned or what.name in named:
                self._by_name[what.name].append((what, file))
        self._seen: _NamesByBase = defaultdict(set)

    def exclude(self, manifests: Iterable[Manifest]) -> None:
        """Exclude the files of remaining versions; stops reading when no file is left."""
        if self._has_named_files():
            for manifest in manifests:
                check_writable(manifest)
                for name in _names_of(manifest, self._seen):
                    self._by_name.pop(name, None)
                if not self._has_named_files():
                    break

    def _has_named_files(self) -> bool:
        return any(name is not None for name in self._by_name)

    def files(self) -> list[tuple[Nameable, StoredFile]]:
        """Return the files and their kinds."""
        return [file for files in self._by_name.values() for file in files]


# --- the environment


def _list_files(table: TableVersion, work: FileWork) -> Iterator[tuple[Nameable, StoredFile]]:
    folders = [folder for folder in FOLDERS if not _is_behind_link(table.store, folder)]
    data_files: set[bytes | None] = set()
    for files in work.list_folders(table.store, folders):
        staged: list[StoredFile] = []
        for file in files:
            what = nameable(file.path)
            if what is not None and what.kind is FileKind.STAGED_MANIFEST:
                staged.append(file)
            elif what is not None:
                if what.kind is FileKind.DATA:
                    data_files.add(chance_of(file.path))
                elif what.kind is FileKind.KEY_INDEX and _is_useless(table, file, data_files):
                    what = what._replace(name=None)
                yield what, file
        if staged:
            obsolete = table.log.obsolete_staged_files([file.path for file in staged])
            what = Nameable(FileKind.STAGED_MANIFEST, None)
            yield from ((what, file) for file in staged if file.path in obsolete)


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


def _map_ahead(store: Store, function: Callable[[T], U], items: Sequence[T]) -> Iterable[U]:
    """Yield the results of a function that reads, in order; reads ahead if that is faster."""
    if store.num_readers <= NUM_READERS:
        return map(function, items)
    return map_ahead(function, items, min(store.num_readers, _READ_AHEAD))


def _read_if_there(log: VersionLog, version: int) -> Manifest | None:
    with suppress(NotFoundError):
        return log.read(version)
    return None


def _bytes_if_there(store: Store, path: str) -> bytes | None:
    with suppress(NotFoundError):
        return store.read(path)
    return None


def _read_newest_first(log: VersionLog, versions: Sequence[int]) -> Iterator[Manifest]:
    for version in reversed(versions):
        is_newest = version == versions[-1]
        try:
            manifest = log.read(version)
        except NotFoundError:
            if not is_newest:
                _check_is_removed(log, version)
                continue
            manifest = log.read_latest()
        if is_newest:
            log.check_may_follow(manifest)
        yield manifest


def _check_is_removed(log: VersionLog, version: int) -> None:
    """Check that a missing version was removed after it was listed.

    Raises:
        CorruptDataError: It is still listed, so the files that it needs are unknown.
    """
    if version in log.versions():
        raise CorruptDataError(
            f"version {version} of {log.store.uri} is listed, but its manifest is missing, so "
            "the files that it needs are unknown"
        )


def _detached_versions(store: Store) -> Iterator[Manifest]:
    """Yield the manifests that are not part of the history.

    Raises:
        CorruptDataError: The name of a possible manifest is unknown.
    """
    paths = [f"{VERSIONS_DIRECTORY}/{name}" for name in store.list_names(VERSIONS_DIRECTORY)]
    _check_are_manifests(store, paths)
    for path in paths:
        if parse_detached_manifest_name(path.rpartition("/")[2]) is None:
            continue
        try:
            data = store.read(path)
        except NotFoundError:
            if store.exists(path):
                raise
        else:
            yield decode_manifest(data)


def _check_are_manifests(store: Store, paths: Iterable[str]) -> None:
    """Check that all files that look like manifests have known names.

    Raises:
        CorruptDataError: A name is unknown, so the file may be the manifest of a version.
    """
    for path in paths:
        name = path.removeprefix(f"{VERSIONS_DIRECTORY}/")
        if (
            name.endswith(".manifest")
            and "/" not in name
            and parse_detached_manifest_name(name) is None
            and parse_manifest_name(name) is None
            and nameable(path) is None
            and not name.startswith(".")
        ):
            raise CorruptDataError(
                f"{store.uri}/{path} looks like a manifest of an unknown version, so the files "
                "that it needs are unknown. Nothing was removed. Delete it if it is not a manifest"
            )


def _of_other_branches(refs: Refs) -> Iterator[Manifest]:
    """Yield the versions of all other branches, the newest of each branch first.

    Raises:
        CorruptDataError: A branch, or a version of one, is damaged or missing.
    """
    for branch, has_versions in other_branches(refs):
        log = refs.log_of(branch)
        try:
            versions = log.versions()
        except NotFoundError as error:
            if not has_versions:
                continue  # it has no files that readers would treat as a version
            raise CorruptDataError(
                f"{log.store.uri} should have the versions of a branch, but has none, so the files "
                "that they need are unknown. If the branch no longer exists, delete its file in "
                f"{refs.root.uri}/{BRANCHES_DIRECTORY}"
            ) from error
        yield from _read_newest_first(log, versions)
        yield from _detached_versions(log.store)


def _remove_versions(
    table: TableVersion,
    selection: _Selection,
    ignored: Collection[str],
    ongoing: _OngoingCommits,
) -> list[int]:
    """Delete the manifests of the selected versions that have not been protected since.

    Returns:
        The removed versions, ascending.
    """
    path = table.log.manifest_path
    removed: list[int] = []
    for start in range(0, len(selection.removable), _VERSIONS_PER_STEP):
        versions = selection.removable[start : start + _VERSIONS_PER_STEP]
        holds = _Protections(table.refs, ignored, _branches_by_origin(table.refs))
        last = ongoing.hold_after(versions, selection.named)
        removable = [version for version in versions if version <= last and not holds.of(version)]
        read = partial(_bytes_if_there, table.store)
        manifests = _map_ahead(table.store, read, [path(version) for version in removable])
        pairs = zip(removable, manifests, strict=True)
        data = {version: manifest for version, manifest in pairs if manifest is not None}
        table.log.remove(list(data))
        holds = _Protections(table.refs, ignored, _branches_by_origin(table.refs))
        for version, manifest in data.items():
            if holds.of(version):
                table.log.undo_remove(version, manifest)
            else:
                removed.append(version)
    return removed
