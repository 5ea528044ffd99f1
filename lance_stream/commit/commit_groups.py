"""Atomic commits to several tables: either all of their versions are published, or none.

A version is published by putting one item into a manifest store (`external_log`). If all tables use
the same store, one transaction of its database puts the items of all tables.

Each table is written by its own thread, a *member* of the group: it plans, writes files, and
resolves conflicts. Only step 2 of its commit waits for the other members:

    a member that
    publishes its version       waits until every other member does so, or has left
    has nothing to publish      leaves: the batch is already committed, or has no row for its table
    fails                       leaves with an error: waiting members raise CommitAbortedError

When all remaining members are waiting, the last one puts all items:

    all were put                all members continue with step 3
    versions are taken          their members re-plan and publish again. The others keep waiting,
                                and their staged manifests stay valid
    no answer, or refused       every member gets the error, and resolves it alone (`publishing`)

If the answer was lost, either all items exist or none, so all members come to the same conclusion,
although each reads only its own table. If a member had no clear answer before the group failed, the
outcome of its commit is unknown, so it deletes nothing.

These guarantees do not cover writers that bypass the manifest store. If such a writer has created a
version's final name, its version takes precedence in this table only, and the member commits again
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
    """Raise unless the versions of all tables are published in the same manifest store.

    Args:
        logs: The tables' version logs, by the name of the table in errors.

    Raises:
        InvalidInputError: A table is published elsewhere; the message names it and a remedy.
    """
    stores: dict[str, ManifestStore] = {}
    tables: dict[str, str] = {}
    for name, version_log in logs.items():
        log = version_log.external
        if log is None:
            _check_manifest_store(name, version_log)
            raise InvalidInputError(
                f"several tables cannot be committed together, or opened together: {name!r}, "
                f"{version_log.store.uri}, publishes its versions in its own directory, which "
                "cannot be done atomically for several tables. Use one manifest store for all of "
                "them, in SQLite, PostgreSQL or DynamoDB, with the storage option manifest_store "
                "(docs/operations/stores.md); or write and read them one after the other"
            )
        first = next(iter(stores), name)
        if log.manifests != stores.get(first, log.manifests):
            raise InvalidInputError(
                f"several tables cannot be committed together, or opened together: {first!r} is in "
                f"{stores[first].where}, and {name!r} in {log.manifests.where}. One transaction "
                "needs one manifest store: set the storage option manifest_store of both to the "
                "same value; or write and read them one after the other"
            )
        if log.base_uri in tables:
            raise InvalidInputError(
                f"{tables[log.base_uri]!r} and {name!r} are the same table, {log.base_uri!r}. A "
                "batch becomes one version of a table: write the rows of both together"
            )
        stores[name] = log.manifests
        tables[log.base_uri] = name


def _check_manifest_store(name: str, log: VersionLog) -> None:
    """Raise if a table that is opened without a manifest store is published in one.

    Raises:
        InvalidInputError: It is published in a manifest store.
    """
    mark = None
    with suppress(NotFoundError):
        mark = log.read(log.latest()).config.get(CONFIG_KEY)
    if mark is not None:
        raise InvalidInputError(
            "several tables cannot be committed together, or opened together, without their "
            f"manifest store: the versions of {name!r}, {log.store.uri}, are published in "
            f"{mark!r}, but the storage option manifest_store is not set. Set it as for the other "
            "writers (docs/operations/stores.md)"
        )


def read_latest_together(logs: Sequence[VersionLog]) -> list[Manifest]:
    """Return the manifests of the newest versions of several tables at one point in time.

    Args:
        logs: The tables' version logs, in one manifest store; see `check_can_commit_together`.

    Raises:
        NotFoundError: A table does not exist, or has no version in the store.
        BadDataError: A manifest is damaged.
    """
    external_logs = [log.external for log in logs if log.external is not None]
    for _ in range(_MAX_READS):
        items = external_logs[0].manifests.latest_of_all([log.base_uri for log in external_logs])
        for version_log, log in zip(logs, external_logs, strict=True):
            if log.base_uri not in items:
                version_log.latest()  # raises if there is no table
                raise NotFoundError(
                    f"{log.manifests.where} has no version of {log.store.uri} yet, so it is "
                    "unknown which version belongs to those of the other tables. Commit to the "
                    "table once"
                )
        existing = [log.read_item(items[log.base_uri]) for log in external_logs]
        manifests = [manifest for manifest in existing if manifest is not None]
        if len(manifests) == len(external_logs):
            return manifests
    raise CorruptDataError(
        f"the newest version of one of {', '.join(log.store.uri for log in external_logs)} is in "
        f"{external_logs[0].manifests.where}, but its manifest does not exist. Open the tables one "
        "at a time to find out which: the error names the remedy"
    )


@dataclass(eq=False)
class Member:
    """The commit of one table in a group; used by one thread.

    Args:
        group: The group.
        name: The table's name in errors.
    """

    group: "CommitGroup" = field(repr=False)
    name: str

    def join(self, log: VersionLog) -> VersionLog:
        """Return the version log of the member's table, which publishes together with the others.

        Raises:
            InvalidInputError: The table's versions are published in its directory.
        """
        check_can_commit_together({self.name: log})
        assert log.external is not None
        return log.external.published_by(self)

    def put_if_not_exists(
        self, manifests: ManifestStore, base_uri: str, item: ManifestItem
    ) -> bool:
        """Put an item together with those of all other remaining members.

        Args:
            manifests: The manifest store, the same for all members.
            base_uri: The table's name in it.
            item: The item.

        Returns:
            True if all items were put; False if this table's version is taken.

        Raises:
            CommitAbortedError: Another member failed, and nothing was put.
            Exception: It is unknown whether the items were put, or the store refused.
        """
        return self.group.put(self, manifests, base_uri, item)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a member that cannot publish: tasks in other processes only read the table."""
        return _UnpickledMember, (self.name,)


@dataclass(frozen=True)
class _UnpickledMember:
    """A member in a process that does not have its group."""

    name: str

    def put_if_not_exists(self, *_: object) -> bool:
        """Raise an error: a version of one table alone would be half of a batch."""
        raise AssertionError(f"the commit of {self.name!r} belongs to the process of its group")


@dataclass(eq=False)
class _WaitingMember:
    base_uri: str
    item: ManifestItem
    is_put: bool | None = None
    error: Exception | None = None


class CommitGroup:
    """Commits of several tables: either all are published, or none.

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
                    raise _aborted_error(*self._failure)
                if self._running:
                    self._changed.wait()
                else:
                    self._put_all(manifests)
        if entry.error is not None:
            raise entry.error
        return bool(entry.is_put)

    def leave(self, member: Member, error: BaseException | None = None) -> None:
        """Remove a member from the group; after an error, no waiting member commits."""
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
    """Put items, in a transaction if there are several; return the tables whose version exists."""
    if len(items) > 1:
        return manifests.put_all_if_not_exist(items)
    ((base_uri, item),) = items.items()
    return frozenset() if manifests.put_if_not_exists(base_uri, item) else frozenset([base_uri])


def _aborted_error(name: str, error: BaseException) -> CommitAbortedError:
    return CommitAbortedError(
        f"nothing was committed: the table {name!r}, which is committed together with this one, "
        f"failed with {type(error).__name__}: {error}"
    )


def run_together(
    work: Mapping[str, Callable[[Member], T]],
    thread_target: Callable[[Callable[[], None]], Callable[[], None]] = lambda target: target,
) -> dict[str, T]:
    """Run the commits of a group, one thread per member, and return their results.

    Args:
        work: The functions of the members. Each commits at most once, to the log that `Member.join`
            returns.
        thread_target: Wraps the function that a thread runs, to pass it the context of the calling
            thread.

    Raises:
        BaseException: The error of the member that failed first. Nothing was committed, unless it
            is a CommitUncertainError or a StoreError: then everything or nothing was committed.
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
