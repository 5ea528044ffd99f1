"""How a commit ends when a store refuses, wrongly reports a name as taken, or does not answer."""

from collections.abc import Callable
from typing import Any

import pytest

from lance_stream.commit.committer import CommittedTransaction, commit
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import CommitUncertainError, StoreRefusedError, StoreUnavailableError
from tests.commit.tables import append, commit_to, create, live_ids, make_environment
from tests.contracts.watched_stores import WatchedStore


def refuse() -> None:
    raise StoreRefusedError("PUT was refused: 403 AccessDenied")


def be_silent() -> None:
    raise StoreUnavailableError("PUT was asked 3 times")


def at_manifests(*acts: Callable[[], Any]) -> Callable[[str, str], None]:
    """Return a watch that does one act after the other when manifests are created, then none."""
    remaining = list(acts)

    def watch(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and remaining:
            remaining.pop(0)()

    return watch


def num_publications(store: WatchedStore) -> int:
    return sum(call == "create_once" and path.endswith(".manifest") for call, path in store.calls)


def test_refusals_are_not_retried() -> None:
    """Missing permissions do not appear by waiting, and deleting files could remove what was
    published.
    """
    log = create(3)
    store = WatchedStore(log.store, before=at_manifests(refuse, refuse))
    with pytest.raises(StoreRefusedError, match="403 AccessDenied"):
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert num_publications(store) == 1
    assert log.versions() == [1]
    assert not [call for call, _ in store.calls if call == "delete"]


def test_refused_reads_keep_the_first_refusal() -> None:
    """The store also refuses to read the version back, so the refusal to publish is reported."""
    log = create(3)
    store = WatchedStore(log.store)

    def refuse_all_from_now() -> None:
        store.before = lambda _call, _path: refuse()
        refuse()

    store.before = at_manifests(refuse_all_from_now)
    with pytest.raises(StoreRefusedError):
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert log.versions() == [1]


def test_unclear_reads_after_refusals_leave_uncertainty() -> None:
    """The refused request may be the repetition of one that published, and no read tells."""
    log = create(3)
    store = WatchedStore(log.store)

    def refuse_and_fall_silent() -> None:
        store.before = lambda _call, _path: be_silent()
        refuse()

    store.before = at_manifests(refuse_and_fall_silent)
    with pytest.raises(CommitUncertainError, match="3 times"):
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())


def test_refused_but_published_versions_succeed() -> None:
    """A proxy may refuse the answer after the store has accepted the request."""
    log = create(3)
    store = WatchedStore(log.store, after=at_manifests(refuse))
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert live_ids(log) == list(range(8))


def test_refusals_after_losing_are_losses() -> None:
    """Another writer took the version, and the commit is tried again on it."""
    log = create(3)

    def lose() -> None:
        commit_to(log, append(1, 1))
        refuse()

    store = WatchedStore(log.store, before=at_manifests(lose))
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert (result.manifest.version, result.attempts) == (3, 2)


def test_a_refusal_after_silence_leaves_uncertainty() -> None:
    """The first request may still be on its way."""
    log = create(3)
    store = WatchedStore(log.store, before=at_manifests(be_silent, *[refuse] * 9))
    with pytest.raises(CommitUncertainError, match="403 AccessDenied"):
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert log.versions() == [1]


def test_falsely_taken_versions_are_published_again() -> None:
    """The store says that the version exists, but it does not."""
    log = create(3)
    store = WatchedStore(log.store)
    real, wrong = store.create_once, ["once"]

    def lie_once(path: str, data: Any, **named: Any) -> bool:
        if path.endswith(".manifest") and wrong:
            wrong.clear()
            return False
        return real(path, data, **named)

    store.create_once = lie_once
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert (result.manifest.version, result.attempts) == (2, 1)


def test_permanently_taken_missing_versions_leave_uncertainty() -> None:
    """The store says every time that the version exists, but it never does."""
    log = create(3)
    store = WatchedStore(log.store)
    real = store.create_once
    store.create_once = lambda path, data, **named: (
        not path.endswith(".manifest") and real(path, data, **named)
    )
    with pytest.raises(CommitUncertainError, match=r"that it is taken.*does not exist"):
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert log.versions() == [1]


def test_falsely_taken_transaction_names_are_replaced() -> None:
    """The store says that the transaction file exists, but it does not."""
    log = create(3)
    store = WatchedStore(log.store)
    real, names = store.create_once, []

    def lie_once(path: str, data: Any, **named: Any) -> bool:
        if path.endswith(".txn"):
            names.append(path)
            if len(names) == 1:
                return False
        return real(path, data, **named)

    store.create_once = lie_once
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert len(set(names)) == 2
    assert names[1].endswith(result.manifest.transaction_file)


def test_stores_of_taken_names_end_early() -> None:
    """Where every name seems to be taken, the commit ends before it publishes."""
    log = create(3)
    store = WatchedStore(log.store)
    store.create_once = lambda _path, _data, **_named: False
    with pytest.raises(StoreUnavailableError, match=r"5 names exist .*_transactions/1-"):
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert log.versions() == [1]
