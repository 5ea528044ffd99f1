"""Random histories by two writers: we and pylance take turns on one table.

After every step both readers see the same rows, ids and stamps, and `verify` finds nothing; and
for any two versions the law of the change feed holds:

    snapshot(a) + feed(a, b) = snapshot(b)
"""

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lance_stream
from tests.sampling import ALL_CASES

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.int32())),
        pa.field("vector", pa.list_(pa.float32(), 2)),
    ]
)
STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]

row_values = st.tuples(
    st.none() | st.integers(-5, 5).map(float),
    st.none() | st.text("abé", max_size=3),
    st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    st.none() | st.tuples(st.just(0.5), st.integers(0, 3).map(float)).map(list),
)
batches = st.lists(row_values, min_size=1, max_size=8)
keys = st.lists(st.integers(0, 60), min_size=1, max_size=6, unique=True)
writers = st.sampled_from(["we", "pylance"])

Rows = dict[int, dict[str, Any]]


def make_table(rows: list[tuple[int, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"id": key, "x": x, "name": name, "tags": tags, "vector": vector}
            for key, (x, name, tags, vector) in rows
        ],
        schema=SCHEMA,
    )


def by_row_id(table: pa.Table) -> Rows:
    rows = table.to_pylist()
    by_id = {row["_rowid"]: row for row in rows}
    assert len(by_id) == len(rows), "a row id occurs twice"
    return by_id


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="lance-stream-histories-")
        self.uri = str(Path(self.folder) / "table")
        self.keys = count()
        self.snapshots: dict[int, Rows] = {0: {}}

    def teardown(self) -> None:
        try:
            for version in self.snapshots:
                self.check_law(version, max(self.snapshots))
        finally:
            shutil.rmtree(self.folder)

    @property
    def ours(self) -> Any:
        return lance_stream.open_dataset(self.uri)

    @property
    def theirs(self) -> Any:
        return lance.dataset(self.uri)

    @initialize(version=st.sampled_from(["2.0", "2.1", "2.2"]), first=batches, creator=writers)
    def create(self, version: str, first: list[Any], creator: str) -> None:
        rows = make_table([(next(self.keys), values) for values in first])
        if creator == "we":
            lance_stream.create_dataset(self.uri, SCHEMA, file_version=version)
            self.ours.append(rows)
        else:
            lance.write_dataset(
                rows, self.uri, data_storage_version=version, enable_stable_row_ids=True
            )

    @rule(writer=writers, values=batches)
    def append(self, writer: str, values: list[Any]) -> None:
        rows = make_table([(next(self.keys), value) for value in values])
        if writer == "we":
            self.ours.append(rows)
        else:
            lance.write_dataset(rows, self.uri, mode="append")

    @rule(writer=writers, doomed=keys)
    def delete(self, writer: str, doomed: list[int]) -> None:
        condition = f"id IN ({', '.join(map(str, doomed))})"
        if writer == "we":
            self.ours.delete(condition)
        else:
            self.theirs.delete(condition)

    @rule(writer=writers, limit=st.integers(0, 20))
    def delete_whole_fragments(self, writer: str, limit: int) -> None:
        condition = f"id < {limit}"
        if writer == "we":
            self.ours.delete(condition)
        else:
            self.theirs.delete(condition)

    @rule(writer=writers, values=batches)
    def overwrite(self, writer: str, values: list[Any]) -> None:
        rows = make_table([(next(self.keys), value) for value in values])
        if writer == "we":
            self.ours.overwrite(rows)
        else:
            lance.write_dataset(rows, self.uri, mode="overwrite")

    @rule(chosen=keys, values=batches)
    def upsert(self, chosen: list[int], values: list[Any]) -> None:
        rows = make_table(list(zip(chosen, values, strict=False)))
        merge = self.theirs.merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    @rule(limit=st.integers(0, 60))
    def update(self, limit: int) -> None:
        self.theirs.update({"x": "x + 1"}, where=f"id > {limit}")

    @rule()
    def compact(self) -> None:
        self.theirs.optimize.compact_files(target_rows_per_fragment=30)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(set(self.snapshots) - {0}) or [1]))
        lance.dataset(self.uri, version=version).restore()

    @rule(writer=writers, value=st.text("ab", max_size=3))
    def configure(self, writer: str, value: str) -> None:
        if writer == "we":
            self.ours.update_config({"some.key": value})
        else:
            self.theirs.update_config({"some.key": value})

    @rule(data=st.data())
    @precondition(lambda self: len(self.snapshots) > 2)
    def law(self, data: st.DataObject) -> None:
        versions = sorted(self.snapshots)
        a, b = sorted([data.draw(st.sampled_from(versions)), data.draw(st.sampled_from(versions))])
        self.check_law(a, b)

    @invariant()
    def both_readers_agree(self) -> None:
        if not Path(self.uri).exists():
            return
        theirs = self.theirs
        for version in range(max(self.snapshots) + 1, theirs.version + 1):
            expected = lance.dataset(self.uri, version=version).to_table(
                columns=[*SCHEMA.names, *STAMPS]
            )
            ds = lance_stream.open_dataset(self.uri, version=version)
            actual = ds.to_table(with_row_id=True, with_row_versions=True)
            actual = actual.select(expected.column_names)
            assert actual.to_pylist() == expected.to_pylist()
            assert ds.count_rows() == expected.num_rows
            assert ds.verify() == []
            self.snapshots[version] = by_row_id(actual)

    def check_law(self, a: int, b: int) -> None:
        rows = dict(self.snapshots[a])
        if b == 0:
            return
        changes = self.ours.changes(a, b, pre_images=True).read_all().to_pylist()
        before: dict[int, dict[str, Any]] = {}
        last = (a, 0)
        for change in changes:
            kind, row_id = change["_change_type"], change["_rowid"]
            content = {name: change[name] for name in (*SCHEMA.names, *STAMPS)}
            assert a < change["_commit_version"] <= b
            assert change["_commit_version"] >= last[0], "versions go backwards"
            last = (change["_commit_version"], 0)
            if kind == "delete":
                assert rows.pop(row_id) == content
            elif kind == "insert":
                assert row_id not in rows
                rows[row_id] = content
            elif kind == "update_preimage":
                assert rows[row_id] == content
                before[row_id] = content
            else:
                assert kind == "update_postimage"
                assert rows[row_id] == before.pop(row_id)
                rows[row_id] = content
        assert before == {}
        assert rows == self.snapshots[b]


def check(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.oracle
@pytest.mark.essential
def test_two_writers_agree_on_short_histories() -> None:
    """Faults between two features show only in random sequences of both writers."""
    check(examples=6, steps=8)


@pytest.mark.nightly
@pytest.mark.oracle
@pytest.mark.slow
def test_two_writers_agree_on_long_histories() -> None:
    """Some faults need many operations on the same rows."""
    check(examples=50 if ALL_CASES else 4, steps=25)
