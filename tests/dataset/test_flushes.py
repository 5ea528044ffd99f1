"""What an append flushes to a local disk, how often, and before what: see docs/decisions/036."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.commit import committer
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target

ROWS = pa.table({"id": list(range(10)), "name": [f"n{number}" for number in range(10)]})

Step = tuple[str, str]

DATA = [("flush", "data/*.lance"), ("flush", "data")]
TRANSACTION = [("flush", "_transactions/*.txn"), ("flush", "_transactions")]
MANIFEST = [
    ("flush", "_versions/*.manifest"),
    ("name", "_versions/*.manifest"),
    ("flush", "_versions"),
]
NAMED = [("name", "_transactions/*.txn")]


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Each flush and each hard link below the table's directory, from now on."""
    calls: list[Step] = []
    fsync, link = os.fsync, os.link

    def kind_of(path: str) -> str:
        within = Path(os.path.relpath(path, tmp_path / "t"))
        endings = [e for e in (".lance", ".txn", ".manifest") if e in within.name]
        return f"{within.parent}/*{endings[0]}" if endings else str(within)

    def watched_fsync(file: int) -> None:
        calls.append(("flush", kind_of(str(Path(f"/proc/self/fd/{file}").readlink()))))
        fsync(file)

    def watched_link(source: Any, target: Any, **named: Any) -> None:
        link(source, target, **named)
        calls.append(("name", kind_of(target)))

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    monkeypatch.setattr(os, "fdatasync", lambda _file: pytest.fail("not known to this test"))
    return calls


def table(tmp_path: Path, durable: str) -> Dataset:
    options = {"durable": durable}
    return lance_stream.create_dataset(tmp_path / "t", ROWS, storage_options=options)


def append(ds: Dataset) -> Dataset:
    return ds.append(ROWS)


def append_batch(ds: Dataset) -> Dataset:
    """Append as the sink does."""
    fragments = write_fragments(ROWS.to_batches(), write_target(ds.table))
    batch = PendingBatch.of("app", ds.version, "query")
    return Dataset(append_fragments(ds.table, fragments, batch).table)


ways = pytest.mark.parametrize("way", [append, append_batch])


@ways
def test_an_append_flushes_its_manifest_twice(
    tmp_path: Path, steps: list[Step], way: Callable[[Dataset], Dataset]
) -> None:
    """The bytes must be durable before the version exists, and its name before the append
    returns.
    """
    ds = append(table(tmp_path, "false"))
    for _ in range(3):
        steps.clear()
        ds = way(ds)
        assert steps == [*NAMED, *MANIFEST]


@ways
def test_durable_appends_flush_files_once(
    tmp_path: Path, steps: list[Step], way: Callable[[Dataset], Dataset]
) -> None:
    """After a power failure a version must not name files that are lost, and each flush costs
    milliseconds.
    """
    ds = append(table(tmp_path, "true"))
    steps.clear()
    way(ds)
    assert sorted(steps) == sorted([*DATA, *TRANSACTION, *NAMED, *MANIFEST])
    assert steps[-3:] == MANIFEST, "all that a version names is flushed before it exists"


@ways
def test_never_durable_tables_flush_nothing(
    tmp_path: Path, steps: list[Step], way: Callable[[Dataset], Dataset]
) -> None:
    """Tests and scratch tables should not wait for the disk."""
    ds = way(append(table(tmp_path, "never")))
    assert not [step for step in steps if step[0] == "flush"]
    assert lance_stream.open_dataset(ds.uri).count_rows() == 30


def test_transactions_without_copies_are_flushed(
    tmp_path: Path, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction too large for the manifest exists in its own file only."""
    ds = append(table(tmp_path, "false"))
    monkeypatch.setattr(committer, "MAX_INLINE_TRANSACTION_BYTES", 1)
    steps.clear()
    append(ds)
    assert steps == [TRANSACTION[0], *NAMED, TRANSACTION[1], *MANIFEST]


@pytest.mark.parametrize("damage", ["empty", "gone"])
def test_lost_transaction_files_do_not_matter(tmp_path: Path, damage: str) -> None:
    """After a power failure writers that lag must still be able to check for conflicts."""
    behind = append(table(tmp_path, "false"))
    behind.append(ROWS)
    for path in (tmp_path / "t" / "_transactions").iterdir():
        path.write_bytes(b"") if damage == "empty" else path.unlink()
    ds = behind.append(ROWS)
    ds = lance_stream.open_dataset(ds.uri).upsert(ROWS, on="id")
    assert not ds.verify()
    assert ds.count_rows() == 40
