"""Drivers of large upserts that are killed at each step, and apply the batch again."""

import signal
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.table.named_files import nameable, names_of
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY
from tests.faults.large_upserts_process import STEPS, expected

PROCESS = Path(__file__).parent / "large_upserts_process.py"
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("seq", pa.int64()),
        pa.field("x", pa.int64()),
        pa.field("wide", pa.string()),
    ]
)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are forked and killed")
def test_killed_drivers_apply_each_batch_once(tmp_path: Path) -> None:
    """No reader may see what a killed driver leaves behind, and a cleanup must remove it."""
    uri = str(tmp_path / "table")
    lance_stream.create_dataset(uri, COLUMNS)
    process = subprocess.run(
        [sys.executable, PROCESS, uri], capture_output=True, text=True, timeout=300, check=True
    )
    ended = [line.split(" ", 1) for line in process.stdout.splitlines()]
    assert ended == [
        ["0", "no step"],
        *(value for step in STEPS for value in ([str(-signal.SIGKILL), step], ["0", "again"])),
    ], process.stdout + process.stderr
    ds = lance_stream.open_dataset(uri)
    num_batches = 1 + len(STEPS)
    assert ds.version == 1 + num_batches, "each batch is one version"
    rows = lance.dataset(uri).to_table().to_pylist()
    stored = {row["id"]: (row["x"], row["wide"] is not None) for row in rows}
    assert len(stored) == len(rows)
    assert stored == expected(num_batches)
    feed = ds.changes(0).read_all().to_pylist()
    state: dict[int, int] = {}
    for change in sorted(feed, key=lambda row: row["_commit_version"]):
        if change["_change_type"] in ("delete", "update_preimage"):
            assert state.pop(change["id"]) == change["x"]
        else:
            state[change["id"]] = change["x"]
    assert state == {key: x for key, (x, _) in stored.items()}
    assert ds.table.store.list(STAGED_ROWS_DIRECTORY), "nothing was left behind"
    assert unnamed(ds)
    ds.cleanup("0 seconds", delete_unverified=True)
    assert not ds.table.store.list(STAGED_ROWS_DIRECTORY)
    assert not unnamed(ds)
    assert ds.verify(deep=True) == []
    assert len(lance.dataset(uri).to_table()) == len(rows)


def unnamed(ds: lance_stream.Dataset) -> list[str]:
    """Return the data files that no version names."""
    log = ds.table.log
    named = {name for version in log.versions() for name in names_of(log.read(version), set())}
    files = [(file.path, nameable(file.path)) for file in ds.table.store.list("data")]
    return [path for path, what in files if what is not None and what.name not in named]
