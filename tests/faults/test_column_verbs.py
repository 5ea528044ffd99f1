"""A verb on columns dies before any call of its store: all of it happened, or nothing."""

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.maintenance.migrations import stable_row_ids
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema(
    [("id", pa.int32()), ("name", pa.string()), ("s", pa.struct([("a", pa.int8())]))]
)

VERBS: dict[str, Callable[[Dataset], Dataset]] = {
    "add_columns": lambda ds: ds.add_columns({"double": "id * 2"}),
    "drop_columns": lambda ds: ds.drop_columns(["name"]),
    "rename_columns": lambda ds: ds.rename_columns({"name": "title"}),
    "add_part": lambda ds: ds.add_columns(pa.field("s.b", pa.string())),
    "compute_part": lambda ds: ds.add_columns({"s.b": "id * 2"}),
    "cast": lambda ds: ds.alter_columns({"path": "id", "data_type": pa.int64(), "name": "key"}),
    "non-null": lambda ds: ds.alter_columns({"path": "name", "nullable": False}),
    "migrate": lambda ds: Dataset(stable_row_ids.migrate(ds.table)),
}


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


def fresh() -> Dataset:
    """Four rows in two fragments, one of them dead, without stable row ids."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA, stable_row_ids=False)
    for ids in ([1, 2], [3, 4]):
        rows = {"id": ids, "name": [f"n{e}" for e in ids], "s": [{"a": e} for e in ids]}
        ds = ds.append(pa.table(rows, SCHEMA))
    return ds.delete("id = 2")


def dying(ds: Dataset, number: int) -> tuple[Dataset, WatchedStore]:
    """Return the table through a store at whose call of a number the process dies."""

    def die(_call: str, _path: str) -> None:
        if len(store.calls) == number + 1:
            raise Killed

    store = WatchedStore(ds.table.store, before=die)
    return Dataset(replace(ds.table, store=store, log=ObjectStoreLog(store))), store


def state(ds: Dataset) -> tuple[bool, pa.Schema, list[dict[str, object]]]:
    return ds.has_stable_row_ids, ds.schema, ds.to_table(with_row_id=True).to_pylist()


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.essential
def test_column_verbs_happen_completely_or_not(name: str) -> None:
    """A process can die between any two requests, and the next writer must be able to continue."""
    verb = VERBS[name]
    before = state(fresh())
    after = state(verb(fresh()))
    assert before != after
    outcomes = []
    for number in itertools.count():
        ds = fresh()
        watched, store = dying(ds, number)
        try:
            verb(watched)
        except Killed:
            pass
        else:
            assert len(store.calls) <= number
            break
        now = ds.checkout(None)
        assert now.verify() == []
        assert state(now) in (before, after)
        outcomes.append(state(now) == after)
        if not outcomes[-1]:
            assert state(verb(now)) == after  # and the next writer does it
    assert outcomes == sorted(outcomes)  # once it has happened it stays so
    assert not outcomes[0]
    assert len(outcomes) > 4
