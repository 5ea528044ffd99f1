"""Atomic commits to several tables: all of their versions are published, or none.

A manifest store decides which version of a table is published by putting one item (`external_log`).
If all tables are in the same store, one transaction of its database puts the items of all.

A separate thread, a *member* of the group, writes each table as if it were alone: it plans, writes
files, and resolves conflicts. Only step 2 of its commit waits for the others:

    a member
    publishes its version       waits until each of the others does so, or has left
    has nothing to publish      leaves: the batch is already committed, or has no row for its table
    fails                       leaves with an error: those that wait raise CommitAbortedError

When all that have not left are waiting, the last of them puts all items:

    all were put                all members go on with step 3
    versions are taken          only their members are told; they re-plan and return. The others
                                keep waiting, and their staged manifests stay valid
    no answer, or refused       each member gets the error, and resolves it alone (`publishing`)

If the answer was lost, either all items exist or none, so each member comes to the same conclusion,
although it reads only its own table. A member that had no clear answer before the group failed does
not know that it failed, so it deletes nothing.

Versions of other writers that bypass the manifest store are outside of these guarantees: one that
has taken a version's final name replaces it in this table alone, and the member commits once more
without the others.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import (
    CommitAbortedError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from lance_stream.table.config.manifest_store_mark import CONFIG_KEY
from lance_stream.table.manifest import Manifest

T = TypeVar("T")

_MAX_READS: Final = 10


def check_can_commit_together(logs: Mapping[str, VersionLog]) -> None:
    """Raise unless the versions of all tables are published in one manifest store.

    Args:
        logs: The tables' histories, by names for errors.

    Raises:
        InvalidInputError: They are not; the message says which, and what to do.
    """
    stores: dict[str, ManifestStore] = {}
    tables: dict[str, str] = {}
    for name, version_log in logs.items():
        log = version_log.external
        if log is None:
            _check_manifest_store(name, version_log)
            raise InvalidInputError(
                f"several tables cannot be committed together, or opened together: {name!r}, "
                f"{version_log.store.uri}, publishes its versions in its own directory, where no "
                "two tables change at once. Give all of them one manifest store in SQLite, "
                "PostgreSQL or DynamoDB, by the storage option manifest_store "
                "(docs/operations/stores.md); or write and read them one after the other"
            )
        first = next(iter(stores), name)
        if log.manifests != stores.get(first, log.manifests):
            raise InvalidInputError(
                f"several tables cannot be committed together, or opened together: {first!r} is "
                f"in {stores[first].where}, and {name!r} in {log.manifests.where}. One transaction "
                "needs one manifest store: give both the same storage option manifest_store, in "
                "the same words; or write and read them one after the other"
            )
        if log.base_uri in tables:
            raise InvalidInputError(
                f"{tables[log.base_uri]!r} and {name!r} are the same table, {log.base_uri!r}. A "
                "batch becomes one version of a table: write the rows of both in one"
            )
        stores[name] = log.manifests
        tables[log.base_uri] = name


def _check_manifest_store(name: str, log: VersionLog) -> None:
    """Raise if a table that is opened without a manifest store is published in one.

    Raises:
        InvalidInputError: It is.
    """
    mark = None
    with suppress(NotFoundError):
        mark = log.read(log.latest()).config.get(CONFIG_KEY)
    if mark is not None:
        raise InvalidInputError(
            f"several tables cannot be committed together, or opened together, without their "
            f"manifest store: the versions of {name!r}, {log.store.uri}, are published in "
            f"{mark!r}, but no storage option manifest_store was given. Give it in "
            "storage_options, as the other writers do (docs/operations/stores.md)"
        )


def read_latest_together(logs: Sequence[VersionLog]) -> list[Manifest]:
    """Return the manifests of the newest versions that several tables had at one moment.

    Args:
        logs: Their histories, in one manifest store; see `check_can_commit_together`.

    Raises:
        NotFoundError: One of the tables does not exist, or has no version in the store.
        BadDataError: A manifest is damaged.
    """
    checked = [log.external for log in logs if log.external is not None]
    for _ in range(_MAX_READS):
        items = checked[0].manifests.latest_of_all([log.base_uri for log in checked])
        for version_log, log in zip(logs, checked, strict=True):
            if log.base_uri not in items:
                version_log.latest()  # raises if there is no table
                raise NotFoundError(
                    f"{log.manifests.where} has no version of {log.store.uri} yet, so it is "
                    "unknown "
                    "which version belongs to those of the other tables: commit to the table once"
                )
        read = [log.read_item(items[log.base_uri]) for log in checked]
        manifests = [manifest for manifest in read if manifest is not None]
        if len(manifests) == len(checked):
            return manifests
    raise CorruptDataError(
        f"the newest version of one of {', '.join(log.store.uri for log in checked)} is in "
        f"{checked[0].manifests.where}, but its manifest does not exist. Open the tables one at a "
        "time to find which: the error states the remedy"
    )


@dataclass(eq=False)
class Member:
    """One table's commit in a group. Belongs to one thread.

    Args:
        group: The group.
        name: The table's name in errors.
    """

    group: "CommitGroup" = field(repr=False)
    name: str

    def join(self, log: VersionLog) -> VersionLog:
        """Return the history of the member's table, which publishes with those of the others.

        Raises:
            InvalidInputError: Its versions are published in its own directory.
        """
        check_can_commit_together({self.name: log})
        assert log.external is not None
        return log.external.published_by(self)

    def put_if_not_exists(
        self, manifests: ManifestStore, base_uri: str, item: ManifestItem
    ) -> bool:
        """Put an item together with those of all other members that have not left.

        Args:
            manifests: The manifest store, the same for all members.
            base_uri: The table's name in it.
            item: The item.

        Returns:
            True if all items were put; False if this table's version is taken.

        Raises:
            CommitAbortedError: Another member failed, and nothing was put.
            Exception: It is unknown whether they were put, or the store refused.
        """
        return self.group.put(self, manifests, base_uri, item)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what another process gets: tasks read the table, and publish nothing."""
        return _MemberElsewhere, (self.name,)


@dataclass(frozen=True)
class _MemberElsewhere:
    """A member in a process that does not have its group."""

    name: str

    def put_if_not_exists(self, *_: object) -> bool:
        """Refuse: a version of one table alone would be half a batch."""
        raise AssertionError(f"the commit of {self.name!r} belongs to the process of its group")


@dataclass(eq=False)
class _WaitingMember:
    base_uri: str
    item: ManifestItem
    is_put: bool | None = None
    error: Exception | None = None


class CommitGroup:
    """The commits of several tables, of which all are published, or none.

    Args:
        names: The members' names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.members: Final = {name: Member(self, name) for name in names}
        self._changed = threading.Condition()
        self._running = set(names)
        self._waiting: dict[str, _WaitingMember] = {}
        self._failure: tuple[str, BaseException] | None = None
        self._manifests: ManifestStore | None = None

    def put(
        self, member: Member, manifests: ManifestStore, base_uri: str, item: ManifestItem
    ) -> bool:
        """See `Member.put_if_not_exists`."""
        entry = _WaitingMember(base_uri, item)
        with self._changed:
            if self._manifests is None:
                self._manifests = manifests
            elif self._manifests != manifests:
                raise InvalidInputError(
                    f"{self._manifests.where} and {manifests.where} cannot commit together"
                )
            self._waiting[member.name] = entry
            self._running.discard(member.name)
            while entry.is_put is None and entry.error is None:
                if self._failure is not None:
                    self._resume([member.name])
                    raise _aborted(*self._failure)
                if self._running:
                    self._changed.wait()
                else:
                    self._put_all(manifests)
        if entry.error is not None:
            raise entry.error
        return bool(entry.is_put)

    def leave(self, member: Member, error: BaseException | None = None) -> None:
        """End a member's part; after an error, no waiting member commits."""
        with self._changed:
            self._running.discard(member.name)
            if error is not None and self._failure is None:
                self._failure = member.name, error
            self._changed.notify_all()

    @property
    def failure(self) -> tuple[str, BaseException] | None:
        """The member that failed first, and its error."""
        return self._failure

    def _put_all(self, manifests: ManifestStore) -> None:
        """Put the items of all waiting members. The caller holds the lock."""
        waiting = dict(self._waiting)
        try:
            existing = _put(manifests, {entry.base_uri: entry.item for entry in waiting.values()})
        except Exception as error:
            for entry in waiting.values():
                entry.error = error
            self._resume(waiting)
            return
        for name, entry in waiting.items():
            if not existing or entry.base_uri in existing:
                entry.is_put = not existing
                self._resume([name])

    def _resume(self, names: Sequence[str] | Mapping[str, Any]) -> None:
        for name in names:
            del self._waiting[name]
            self._running.add(name)
        self._changed.notify_all()


def _put(manifests: ManifestStore, items: Mapping[str, ManifestItem]) -> frozenset[str]:
    """Put items, and return which versions are taken; one alone needs no transaction."""
    if len(items) > 1:
        return manifests.put_all_if_not_exist(items)
    ((base_uri, item),) = items.items()
    return frozenset() if manifests.put_if_not_exists(base_uri, item) else frozenset([base_uri])


def _aborted(name: str, error: BaseException) -> CommitAbortedError:
    return CommitAbortedError(
        f"nothing was committed: {name!r}, which is committed together with this table, failed "
        f"with {type(error).__name__}: {error}"
    )


def run_together(
    work: Mapping[str, Callable[[Member], T]],
    thread_target: Callable[[Callable[[], None]], Callable[[], None]] = lambda target: target,
) -> dict[str, T]:
    """Run the commits of a group, each in a thread, and return their results.

    Args:
        work: What each member does: it commits once, to the history that `Member.join` returns, or
            not at all.
        thread_target: Returns what a thread runs instead of a function, to pass it what the calling
            thread has.

    Raises:
        BaseException: The error of the member that failed first. Unless it is a
            CommitUncertainError or a StoreError, nothing was committed; otherwise all or nothing.
    """
    group = CommitGroup(list(work))
    results: dict[str, T] = {}

    def run(member: Member) -> None:
        try:
            results[member.name] = work[member.name](member)
        except BaseException as error:
            group.leave(member, error)
        else:
            group.leave(member)

    threads = []
    for name, member in group.members.items():
        target = thread_target(lambda member=member: run(member))  # type: ignore[misc]  # mypy infers no default
        threads.append(threading.Thread(target=target, name=f"commit of {name}", daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if group.failure is not None:
        name, error = group.failure
        error.add_note(f"table {name!r}, which is committed together with {len(work) - 1} others")
        raise error
    return results
