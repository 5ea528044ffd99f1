"""A stream feeds a table of file version 0.1, and refuses what that cannot hold."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.spark import lance_sink

pytestmark = [pytest.mark.spark, pytest.mark.oracle]


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 5 == 4 else f"n{n}" for n in numbers]),
            "tags": pa.array([[n] * (n % 3) for n in numbers], pa.list_(pa.int32())),
        }
    )


def test_streams_write_version_0_1_tables(file_stream: Any, tmp_path: Path) -> None:
    """Old tables keep their file version, pylance must read the appended files, and nulls that the
    version cannot hold must be refused.
    """
    uri = str(tmp_path / "table")
    lance.write_dataset(rows(0, 10), uri, data_storage_version="legacy")
    file_stream.add(rows(10, 15))
    file_stream.add(rows(15, 30))
    file_stream.run(lance_sink(uri))

    table = lance_stream.open_dataset(uri)
    assert table.file_version == "0.1"
    assert table.to_table().sort_by("id") == rows(0, 30)
    assert table.verify() == []
    theirs = lance.dataset(uri)
    assert theirs.to_table().sort_by("id") == rows(0, 30)
    assert theirs.to_table(filter="id >= 27").num_rows == 3

    nulled = rows(30, 32).set_column(0, "id", pa.array([30, None], pa.int64()))
    file_stream.add(nulled)
    with pytest.raises(Exception, match=r"'id' has 1 nulls, which files of version 0\.1 do not"):
        file_stream.run(lance_sink(uri))
    assert lance_stream.open_dataset(uri).count_rows() == 30
