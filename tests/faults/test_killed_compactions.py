"""A process that compacts beside its batches is killed at any moment, and another continues."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.compaction.automatic import AUTO
from lance_stream.maintenance.verification.verify import verify
from tests.faults.compacting_process import NUM_OLD_KEYS, batch

PROCESS = Path(__file__).parent / "compacting_process.py"
NUM_BATCHES = 30
HIDDEN_LINEAGE = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "20"}


def content_after(num_batches: int) -> dict[int, int]:
    content = dict.fromkeys(range(NUM_OLD_KEYS), -1)
    for number in range(num_batches):
        content.update(dict.fromkeys(batch(number)["id"].to_pylist(), number))
    return content


def check(uri: str) -> lance_stream.Dataset:
    ds = lance_stream.open_dataset(uri)
    rows = ds.to_table().to_pydict()
    content = dict(zip(rows["id"], rows["x"], strict=True))
    assert content == content_after(max(0, max(content) - NUM_OLD_KEYS + 1))
    assert len(rows["id"]) == len(content)
    assert verify(ds.table) == []
    return ds


@pytest.mark.slow
@pytest.mark.parametrize(("every", "config"), [(1, {}), (AUTO, {}), (1, HIDDEN_LINEAGE)])
def test_killed_compactions_lose_no_rows(
    tmp_path: Path, every: int | str, config: dict[str, str]
) -> None:
    """A background compaction dies with its stream at any moment, and the next process must
    neither lose rows nor let fragments pile up.
    """
    dice, uri = random.Random(1), str(tmp_path / "t")
    start = [sys.executable, str(PROCESS), uri, str(NUM_BATCHES), str(every)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])
    ds = lance_stream.create_dataset(uri, schema, primary_key=["id"], config=config)
    ds.append(pa.table({"id": range(NUM_OLD_KEYS), "x": [-1] * NUM_OLD_KEYS}, schema=schema))
    for _ in range(4):
        with subprocess.Popen(start, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(dice.randint(1, 4)):
                assert process.stdout.readline()
            time.sleep(dice.random() * 0.1)
            process.send_signal(signal.SIGKILL)
        check(uri)
    subprocess.run(start, check=True, stdout=subprocess.PIPE, timeout=300)
    ds = check(uri)
    assert ds.count_rows() == NUM_OLD_KEYS + NUM_BATCHES
    operations = [version.operation for version in ds.versions()]
    assert operations.count("Update") == NUM_BATCHES
    assert operations.count("Rewrite") > 2
    assert len(ds.table.manifest.fragments) < 15
    assert ds.table.manifest.fragments.has_hidden_lineage == bool(config)
