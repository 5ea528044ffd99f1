"""Which layout and codec a page is written in."""

from typing import Any

import pyarrow as pa
import pytest

from lance_stream.file.encoding_options import PREFIX
from lance_stream.file.versions import FileVersion

BOTH = [FileVersion.V2_1, FileVersion.V2_2]


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("layout", ["miniblock", "fullzip"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, 7, None, 6], pa.int64()),
        pa.array(["a", "long" * 100, None]),
        pa.array([[1, 2], [], None, [3]], pa.list_(pa.int16())),
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    ],
    ids=["numbers", "strings", "lists", "vectors"],
)
def test_the_layout_that_is_asked_for(
    columns: Any, values: pa.Array, layout: str, version: FileVersion
) -> None:
    metadata = {PREFIX + "structural-encoding": layout}
    column = columns.write(values, version=version, metadata=metadata)
    names = {"miniblock": "mini_block_layout", "fullzip": "full_zip_layout"}
    assert column.layouts() == [names[layout]]
    assert column.read(0, len(values)).equals(values)


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    "values",
    [
        pa.array([bytes(range(200)) * 200, b"x" * 9], pa.binary()),
        pa.array([[1.0] * 5000, [2.0] * 5000], pa.list_(pa.float64(), 5000)),
    ],
    ids=["bytes", "vectors"],
)
def test_what_does_not_fit_into_chunks_is_written_all_the_same(
    columns: Any, values: pa.Array, version: FileVersion
) -> None:
    metadata = {PREFIX + "structural-encoding": "miniblock"}
    column = columns.write(values, version=version, metadata=metadata)
    assert column.read(0, 2).equals(values)
