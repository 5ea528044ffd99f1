"""What stands beside a table's history: detached versions, logs, tables made anew."""

import uuid
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import lance_stream
from lance_stream.errors import LanceStreamError
from tests.histories.life import Life, plain_rows
from tests.histories.model import KEY
from tests.histories.steps import Choices, DoesNotFit, action


@action(weight=0.3)
def detached_version(life: Life, choose: Choices) -> None:
    """A handle of a version outside of the history: it can be read, and nothing else."""
    line = life.line(choose)
    if line.branch is not None:
        raise DoesNotFit("pylance opens detached versions of the main branch only")
    theirs = line.pylance()
    rows = life.fitting_new_rows(
        line.now, choose("rows", lambda d: life.draw_new_rows(line.now, d))
    )
    data = line.now.table(rows)
    detached = lance.LanceDataset.commit(
        theirs,
        lance.LanceOperation.Append(write_fragments(data, theirs)),
        read_version=theirs.version,
        detached=True,
    )
    line.memory["detached"] = [*line.memory.get("detached", []), detached.version]
    ds = line.ours(detached.version)
    read = plain_rows(ds.to_table())
    assert {row[KEY] for row in read} == line.now.rows.keys() | rows.keys()
    assert [finding.rule for finding in ds.verify() if finding.rule != "write-ahead log"] == []
    verbs = {
        "append": lambda: ds.append(data),
        "overwrite": lambda: ds.overwrite(data),
        "upsert": lambda: ds.upsert(data, on=KEY),
        "delete": lambda: ds.delete(f"{KEY} >= 0"),
        "update": lambda: ds.update({KEY: f"{KEY} + 1"}),
        "update_config": lambda: ds.update_config({"some.key": "detached"}),
        "add_columns": lambda: ds.add_columns(pa.field("zz", pa.int64())),
        "compact": lambda: ds.compact(3),
        "changes": lambda: ds.changes(0).read_all(),
    }
    verb = choose("verb", lambda dice: dice.choice([*verbs]))
    with pytest.raises(LanceStreamError, match="detached"):
        verbs[verb]()
    assert line.ours().version == line.newest, f"{verb} has changed the table"


@action(weight=0.15)
def log_beside_columns(life: Life, choose: Choices) -> None:
    """Rows of a write-ahead log keep their values, whatever is done to the columns."""
    kinds = {"alter": pa.int32(), "compute": pa.int32()}
    how = choose("how", lambda dice: dice.choice([*kinds]))
    num_steps = choose("appends", lambda dice: dice.randrange(3))
    uri = f"{life.folder}/log{life.number()}"
    key = pa.field(KEY, pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, pa.field("n", pa.int32())])

    def rows(number: int) -> pa.Table:
        return pa.table({KEY: [number], "n": [number]}, schema=schema)

    theirs = lance.write_dataset(rows(0), uri, enable_stable_row_ids=True)
    theirs.initialize_mem_wal()
    shard = str(uuid.UUID(int=1))
    with lance.dataset(uri).mem_wal_writer(shard) as writer:
        writer.put(rows(100))
    for number in range(num_steps):
        lance_stream.open_dataset(uri).append(rows(1 + number))
    ds = lance_stream.open_dataset(uri)
    try:
        if how == "alter":
            ds.alter_columns({"path": "n", "data_type": pa.int64()})
        else:
            ds.add_columns({"twice": "n * 2"})
    except LanceStreamError:
        life.counts["refused beside a log"] += 1
    with lance.dataset(uri).mem_wal_writer(shard) as writer:
        merged: Any = writer.lsm_scanner().to_table().to_pylist()
    for row in merged:
        assert row["n"] == row[KEY], f"a row of the log has lost its value: {row}"
        assert row.get("twice", 2 * row[KEY]) == 2 * row[KEY], row
