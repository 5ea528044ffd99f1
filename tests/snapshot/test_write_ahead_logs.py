"""A warning for tables that pylance writes through a write-ahead log: rows may be missing."""

import json
import uuid
import warnings
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.cli.main import main

pytestmark = pytest.mark.oracle

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), ("x", pa.float64())])


def table_with_log(path: Path) -> str:
    rows = pa.table({"id": [1, 2], "x": [1.0, 2.0]}, schema=SCHEMA)
    lance.write_dataset(rows, path, enable_stable_row_ids=True).initialize_mem_wal()
    writer = lance.dataset(path).mem_wal_writer(str(uuid.uuid4()))
    writer.put(pa.table({"id": [3], "x": [3.0]}, schema=SCHEMA))
    writer.close()
    return str(path)


def test_write_ahead_logs_warn_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows in the log are not in any version, so results would silently look incomplete."""
    path = table_with_log(tmp_path / "t")
    with pytest.warns(UserWarning, match="rows that have not been merged"):
        ds = lance_stream.open_dataset(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lance_stream.open_dataset(path).count_rows() == 2
        assert main(["show", path, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["write_ahead_log"]["num_files"] > 0
    assert main(["show", path]) == 0
    assert "unmerged rows belong to no version" in capsys.readouterr().out
    (finding,) = ds.verify()
    assert finding.rule == "write-ahead log"
    ds = ds.append(pa.table({"id": [4], "x": [4.0]}))
    assert lance.dataset(path).to_table().num_rows == 3
    assert ds.verify()[0].rule == "write-ahead log"


def test_tables_without_a_log_warn_nothing(tmp_path: Path) -> None:
    """A warning that also appears on plain tables would be ignored."""
    lance.write_dataset(pa.table({"id": [1]}, schema=SCHEMA.remove(1)), tmp_path / "t")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lance_stream.open_dataset(tmp_path / "t").verify() == []
