"""A cleanup at every step of other operations: it breaks no version, and no change is lost.

Before each call to the store that a verb makes, in turn, another writer compacts the table, appends
a row, and cleans up all but the newest version; or just cleans up.
"""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, NotFoundError
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.rules import CleanupRules
from tests.contracts.watched_stores import WatchedStore
from tests.dataset.table_copies import copy_of

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64())])
ALL = CleanupRules(older_than=None)

Rows = set[tuple[int | None, ...]]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "x": [id_ % 7 for id_ in ids]}, schema=SCHEMA)


@cache
def template() -> Dataset:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    return ds.append(rows(*range(10))).append(rows(*range(10, 20))).delete("id = 3")


def new_table() -> Dataset:
    return copy_of(template())


def rows_of(ds: Dataset) -> Rows:
    return {tuple(row.values()) for row in ds.checkout(None).to_table().to_pylist()}


def clean_up(ds: Dataset) -> None:
    cleanup(ds.checkout(None).table, ALL)


def write_and_clean_up(ds: Dataset) -> None:
    clean_up(ds.checkout(None).compact().append(rows(1000)))


def with_others(ds: Dataset, at: int, act: Callable[[Dataset], None]) -> tuple[Dataset, list[str]]:
    """Return the table through a store before whose call of a number others act; and the calls."""
    calls: list[str] = []

    def before(call: str, _path: str) -> None:
        calls.append(call)
        if len(calls) == at + 1:
            act(ds)

    store = WatchedStore(ds.table.store, before=before)
    return Dataset(replace(ds.table, store=store, log=ObjectStoreLog(store))), calls


BEFORE: Rows = {(number, number % 7) for number in range(20) if number != 3}

VERBS: dict[str, tuple[Callable[[Dataset], Dataset], Callable[[Any], Any]]] = {
    "append": (lambda ds: ds.append(rows(99)), lambda old: old | {(99, 1)}),
    "delete": (lambda ds: ds.delete("id < 5"), lambda old: {r for r in old if r[0] >= 5}),
    "update": (
        lambda ds: ds.update({"x": "100"}, "id < 5"),
        lambda old: {(r[0], 100) if r[0] < 5 else r for r in old},
    ),
    "upsert": (
        lambda ds: ds.upsert(pa.table({"id": [1, 300], "x": [100, 100]}), "id"),
        lambda old: {r for r in old if r[0] != 1} | {(1, 100), (300, 100)},
    ),
    "compact": (lambda ds: ds.compact(), lambda old: old),
    "add columns": (
        lambda ds: ds.add_columns({"y": "x + id"}),
        lambda old: {(*r, r[0] + r[1]) for r in old},
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.essential
def test_verbs_survive_cleanup_of_their_version(verb: str) -> None:
    """The number that the verb meant to publish was taken by another writer and then removed, so
    the verb's version must not end up behind the newest.
    """
    act, meant = VERBS[verb]
    for at in range(100):
        ds = new_table()
        watched, calls = with_others(ds, at, write_and_clean_up)
        act(watched)
        if len(calls) <= at:
            break
        newer = (1000, 6) if verb != "add columns" else (1000, 6, None)
        assert rows_of(ds) in (meant(BEFORE | {(1000, 6)}), meant(BEFORE) | {newer})
        assert ds.checkout(None).verify() == []
    assert 4 < at < 30


@pytest.mark.parametrize("act", [clean_up, write_and_clean_up])
def test_restores_are_complete_or_refused(act: Callable[[Dataset], None]) -> None:
    """A restore names files of an old version, which a cleanup may delete between any two of its
    steps.
    """
    restored = refused = 0
    for at in range(100):
        ds = new_table()
        watched, calls = with_others(ds, at, act)
        try:
            watched.restore(2)
            restored += 1
        except NotFoundError:
            refused += 1
        if len(calls) <= at:
            break
        newest = ds.checkout(None)
        assert newest.verify() == []
        assert newest.to_table().num_rows == newest.count_rows()
        assert not ds.tags.list()
    assert restored > 3
    assert refused > 1


def test_restores_during_a_cleanup_are_whole() -> None:
    """At each step of the cleanup, another writer restores a version."""
    for at in range(100):
        ds = new_table()
        got: list[str] = []

        def restore(ds: Dataset, got: list[str] = got) -> None:
            try:
                ds.restore(2)
                got.append("restored")
            except NotFoundError:
                got.append("refused")

        watched, calls = with_others(ds, at, restore)
        cleanup(watched.table, ALL)
        if len(calls) <= at:
            break
        newest = ds.checkout(None)
        assert newest.verify() == []
        assert newest.to_table().num_rows == (10 if got == ["restored"] else 19)
    assert 20 < at < 100
