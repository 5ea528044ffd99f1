"""A sink whose driver dies around its commit, or commits too late."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import CommitUncertainError, NotFoundError
from lance_stream.spark import lance_sink
from lance_stream.spark.sink import modes as sinks

pytestmark = pytest.mark.spark


def ids_of(uri: str) -> list[int]:
    return sorted(lance_stream.open_dataset(uri).to_table(["id"])["id"].to_pylist())


def versions_of(uri: str) -> int:
    try:
        return lance_stream.open_dataset(uri).version
    except NotFoundError:
        return 0


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_dying_sink_commits_batches_once(
    file_stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The sink dies just before or after its commit."""
    uri = str(tmp_path / "table")
    commit = sinks.append_fragments
    deaths = [1]

    def die(*args: Any, **kwargs: Any) -> Any:
        if deaths and when == "before":
            deaths.pop()
            raise CommitUncertainError("the power went")
        committed = commit(*args, **kwargs)
        if deaths:
            deaths.pop()
            raise CommitUncertainError("the power went")
        return committed

    file_stream.add(rows(0, 1))
    file_stream.add(rows(2, 3))
    monkeypatch.setattr(sinks, "append_fragments", die)
    with pytest.raises(Exception, match="the power went"):
        file_stream.run(lance_sink(uri))
    sink = lance_sink(uri)
    file_stream.run(sink)
    assert ids_of(uri) == [0, 1, 2, 3]
    assert versions_of(uri) == 2


def test_batches_committed_by_rivals_are_skipped(
    file_stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers write one batch at once, and each has read the ledger before either commits."""
    uri = str(tmp_path / "table")
    commit = sinks.append_fragments
    rival = lance_sink(uri, app_id="app")
    batches: list[tuple[Any, int]] = []

    def be_late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(sinks, "append_fragments", commit)
        rival(*batches[-1])
        return commit(*args, **kwargs)

    sink = lance_sink(uri, app_id="app")

    def run_with_a_rival(df: Any, batch_id: int) -> None:
        batches.append((df, batch_id))
        monkeypatch.setattr(sinks, "append_fragments", be_late)
        sink(df, batch_id)

    file_stream.add(rows(0, 1))
    file_stream.add(rows(2))
    file_stream.run(run_with_a_rival)
    assert ids_of(uri) == [0, 1, 2]
    assert versions_of(uri) == 2
    assert sink.last_commit is not None
    assert sink.last_commit.skipped
    assert sink.last_commit.rows_inserted == 0
