"""Checkpoints of earlier releases: each batch can be replayed, and the query continues."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from tests.golden.archives import unpack
from tests.spark.feed.query_runs import Query

RECORDED = sorted((Path(__file__).parent / "streams").glob("*.tar.xz"))
COLUMNS = ["_commit_version", "_change_type", "id", "name"]


@pytest.fixture(params=RECORDED, ids=lambda path: path.name.split(".")[0])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        unpack(archive, tmp_path)
    return tmp_path


def offsets_of(folder: Path) -> list[str]:
    paths = sorted((folder / "checkpoint" / "offsets").iterdir(), key=lambda path: int(path.name))
    return [path.read_text().splitlines()[-1] for path in paths]


def sorted_rows(batch: list[dict[str, Any]]) -> list[list[Any]]:
    return sorted([row[name] for name in COLUMNS] for row in batch)


def test_every_format_has_a_checkpoint() -> None:
    """An offset format without a recording could become unreadable unnoticed."""
    assert [path.name for path in RECORDED] == [
        f"format_{name}.tar.xz" for name in ("1", "2", "3", "3_updates", "4")
    ]


def test_recorded_batches_can_be_replayed(recorded: Path) -> None:
    """After an upgrade Spark replays the last planned batch, which must have the rows that it had
    before.
    """
    content = json.loads((recorded / "batches.json").read_text())
    offsets = offsets_of(recorded)
    assert len(offsets) == len(content["batches"]) > 2
    for number, batch in enumerate(content["batches"]):
        query = Query(
            str(recorded / "table"),
            content["options"],
            offsets=offsets[: number + 1],
            num_done=number,
        )
        query.start()
        assert sorted_rows(query.batches[0]) == batch


@pytest.mark.floors
def test_recorded_checkpoints_can_be_continued(recorded: Path) -> None:
    """An upgraded query must deliver exactly the changes after its recorded offset."""
    offsets = offsets_of(recorded)
    query = Query(str(recorded / "table"), {}, offsets=offsets, num_done=len(offsets))
    assert query.run() == []
    table = lance_stream.open_dataset(str(recorded / "table"))
    table.append(pa.table({"id": [9], "name": ["n9"]}))
    (batch,) = query.run()
    assert sorted_rows(batch) == [[6, "insert", 9, "n9"]]
