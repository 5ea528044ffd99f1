"""Upserts of ours between operations of pylance, with bounds known of whatever they left."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.index import key_index
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.keys.index.small_runs import restart, runs_of, small_runs

pytestmark = pytest.mark.oracle

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("x", pa.int64())])


def batch(keys: list[int], x: int) -> pa.Table:
    columns = [pa.array([f"{key:03d}" for key in keys]), pa.array([x] * len(keys), pa.int64())]
    return pa.table(columns, SCHEMA)


@pytest.mark.parametrize("seed", range(3))
def test_upserts_find_every_key_beside_pylance(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pylance changes the table between the upserts."""
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 1)
    dice = np.random.default_rng(seed)
    uri = str(tmp_path / "t")
    model = dict.fromkeys(range(30), 0)
    lance.write_dataset(batch(list(model), 0), uri, enable_stable_row_ids=True, max_rows_per_file=5)
    for step in range(1, 16):
        around = int(dice.integers(0, 60))
        keys = dice.choice(np.arange(around, around + 6), 3, replace=False).tolist()
        theirs = lance.dataset(uri)
        action = step % 3 and dice.choice(["merge", "delete", "update", "compact", "restore"])
        if action == 0:
            result = upsert(
                lance_stream.open_dataset(uri).table, batch(keys, step), UpsertRules(("id",))
            )
            assert result.num_updated == len(model.keys() & set(keys))
            model |= dict.fromkeys(keys, step)
        elif action == "merge":
            merge = (
                theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            )
            merge.execute(batch(keys, step))
            model |= dict.fromkeys(keys, step)
        elif action == "delete":
            theirs.delete(f"id = '{keys[0]:03d}'")
            model.pop(keys[0], None)
        elif action == "update":
            theirs.update({"x": str(step)}, where=f"id > '{keys[0]:03d}'")
            model |= {key: step for key in model if key > keys[0]}
        elif action == "compact":
            theirs.optimize.compact_files(target_rows_per_fragment=12)
        else:
            version = max(1, theirs.version - 2)
            lance.dataset(uri, version=version).restore()
            columns = lance.dataset(uri).to_table().to_pydict()
            model = {int(key): x for key, x in zip(columns["id"], columns["x"], strict=True)}
        columns = lance_stream.open_dataset(uri).to_table().to_pydict()
        assert {int(key): x for key, x in zip(columns["id"], columns["x"], strict=True)} == model
        assert len(columns["id"]) == len(model)


_small_runs = pytest.fixture(small_runs)


@pytest.mark.usefixtures("_small_runs")
@pytest.mark.parametrize("seed", range(4))
def test_an_index_is_right_beside_pylance(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compactions of ours carry the index over; pylance changes and compacts the table, too."""
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", 1 + 20 * (seed % 2))
    dice = np.random.default_rng(seed)
    uri = str(tmp_path / "t")
    model = dict.fromkeys(range(60), 0)
    lance.write_dataset(batch(list(model), 0), uri, enable_stable_row_ids=True, max_rows_per_file=9)
    steps = ["ours", "compact ours", "restart", "merge", "delete", "compact", "restore"]
    num_runs = 0
    for step in range(1, 30):
        keys = dice.choice(90, 8, replace=False).tolist()
        action = dice.choice(steps, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05])
        theirs = lance.dataset(uri)
        table = lance_stream.open_dataset(uri).table
        if action == "ours":
            result = upsert(table, batch(keys, step), UpsertRules(("id",)))
            assert result.num_updated == len(model.keys() & set(keys))
            model |= dict.fromkeys(keys, step)
        elif action == "compact ours":
            lance_stream.Dataset(table).compact()
        elif action == "restart":
            restart()
        elif action == "merge":
            merge = theirs.merge_insert("id").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(batch(keys, step))
            model |= dict.fromkeys(keys, step)
        elif action == "delete":
            theirs.delete(f"id = '{keys[0]:03d}'")
            model.pop(keys[0], None)
        elif action == "compact":
            theirs.optimize.compact_files(target_rows_per_fragment=30)
        else:
            lance.dataset(uri, version=max(1, theirs.version - 2)).restore()
            columns = lance.dataset(uri).to_table().to_pydict()
            model = {int(key): x for key, x in zip(columns["id"], columns["x"], strict=True)}
        columns = lance.dataset(uri).to_table().to_pydict()
        assert sorted(zip(map(int, columns["id"]), columns["x"], strict=True)) == sorted(
            model.items()
        )
        num_runs += len(runs_of(table))
    assert num_runs
