"""Derived columns beside a writer that drops the row versions of all fragments."""

import uuid
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_stream
from lance_stream import Dataset, derive
from tests.feed.dropped_row_versions import drop_row_versions

Writer = Callable[[Dataset], Dataset]


def rows(*ids: int, text: str = "t") -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"{text}{id_}" for id_ in ids]})


def length_of(batch: pa.RecordBatch) -> pa.Array:
    return pc.utf8_length(batch["text"])


def update(ds: Dataset, *ids: int) -> Dataset:
    """Update rows as pylance does: they move to a new fragment."""
    return ds.upsert(rows(*ids, text="a longer text"), on="id")


WRITERS: dict[str, Writer] = {
    "append": lambda ds: drop_row_versions(ds.append(rows(9, text="new"))),
    "update": lambda ds: drop_row_versions(update(ds, 1, 4)),
    "delete after an update": lambda ds: drop_row_versions(update(ds, 1, 4).delete("id = 3")),
    "compaction after an update": lambda ds: drop_row_versions(update(ds, 1, 4).compact()),
    "compaction after a drop": lambda ds: (
        drop_row_versions(update(ds, 1).append(rows(8))).append(rows(9)).compact()
    ),
}


@pytest.mark.parametrize("is_separate", [False, True])
@pytest.mark.parametrize("writer", [*WRITERS])
def test_rows_without_versions_are_computed(writer: str, is_separate: bool) -> None:
    """An inserted or updated row reads as version 1, the same as rows that never changed."""
    folder = f"memory://{uuid.uuid4()}"
    ds = lance_stream.create_dataset(f"{folder}/t", rows(0, 1, 2, 3)).append(rows(4, 5))
    target = f"{folder}/lengths" if is_separate else None
    lengths = derive(
        ds.uri, {"length": pa.int32()}, length_of, "text", function_version="1", target=target
    )
    lengths.run()
    WRITERS[writer](lance_stream.open_dataset(ds.uri))
    lengths.run()
    check_lengths(ds.uri, target)


@pytest.mark.parametrize("is_separate", [False, True])
def test_pending_rows_survive_dropped_versions(is_separate: bool) -> None:
    """Rows that a round has left for the next one are found by their row versions."""
    folder = f"memory://{uuid.uuid4()}"
    ds = lance_stream.create_dataset(f"{folder}/t", rows(0, 1, 2, 3)).append(rows(4, 5))
    target = f"{folder}/lengths" if is_separate else None
    lengths = derive(
        ds.uri,
        {"length": pa.int32()},
        length_of,
        "text",
        function_version="1",
        target=target,
        rows_per_commit=2,
    )
    lengths.run()
    update(lance_stream.open_dataset(ds.uri), *range(6))
    lengths.run(max_commits=1)
    drop_row_versions(lance_stream.open_dataset(ds.uri).append(rows(9)))
    assert lengths.status().num_pending >= 5
    lengths.run()
    check_lengths(ds.uri, target)


def test_restored_rows_without_versions_are_computed() -> None:
    """A separate table keeps the values that a restore of its source has undone."""
    folder = f"memory://{uuid.uuid4()}"
    ds = drop_row_versions(lance_stream.create_dataset(f"{folder}/t", rows(0, 1, 2, 3)))
    target = f"{folder}/lengths"
    lengths = derive(
        ds.uri, {"length": pa.int32()}, length_of, "text", function_version="1", target=target
    )
    ds = drop_row_versions(update(ds, 1))
    lengths.run()
    ds.restore(1)
    lengths.run()
    check_lengths(ds.uri, target)


def check_lengths(uri: str, target: str | None) -> None:
    """Check that each row has the length of its text."""
    table = lance_stream.open_dataset(uri).to_table(with_row_id=True)
    if target is None:
        assert table["length"].to_pylist() == [len(text) for text in table["text"].to_pylist()]
        return
    expected = {row["_rowid"]: len(row["text"]) for row in table.to_pylist()}
    derived = lance_stream.open_dataset(target).to_table().to_pylist()
    assert {row["source_row_id"]: row["length"] for row in derived} == expected
