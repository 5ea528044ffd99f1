"""Damaged pages and metadata of every kind of file: refused, or read as something, cheaply.

`fuzz_files` does this for as long as one likes; here it does it for some seconds, and what it has
found stays as a table of changes to sound files.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from lance_stream._proto import encodings_v2_1_pb2
from lance_stream.file.versions import FileVersion
from tests.faults.damage import Damager, Parts
from tests.faults.fuzz_files import VERSIONS, Campaign, Finding, find_harm, written_by_us
from tests.oracle.type_cases import COLUMNS, SHAPES

ROOT = Path(__file__).parents[2]
SHAPES_BY_NAME = {shape.name: shape for shape in SHAPES}


def sound_file(column: str, shape: str, version: FileVersion) -> bytes:
    chosen = COLUMNS[column]
    array = chosen.array(SHAPES_BY_NAME[shape], np.random.default_rng(0))
    batch = pa.record_batch([array], schema=pa.schema([chosen.field]))
    return written_by_us(batch, version)


@pytest.mark.oracle
@pytest.mark.slow
def test_damaged_files_do_no_harm(tmp_path: Path) -> None:
    """Damage must end in rows or in an error of this package, never in a crash, a hang or an
    absurd allocation.
    """
    process = subprocess.run(
        [
            *(sys.executable, "-m", "tests.faults.fuzz_files", "--most", "2000", "--seed", "7"),
            *("--minutes", "5", "--findings", str(tmp_path / "findings")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-2000:]
    assert "2000 damaged files read, 0 kinds of findings" in process.stdout


def test_findings_are_saved_once_per_kind(tmp_path: Path) -> None:
    """A search that runs for hours meets the same error again and again."""
    campaign = Campaign(tmp_path, 0, {})
    for data, what in ((b"a", "TypeError: 1"), (b"b", "TypeError: 2"), (b"c", "IndexError: 1")):
        campaign.keep("bits", data, Finding(what, "reader.py", "the trace"))
    assert campaign.findings == {"TypeError at reader.py": 2, "IndexError at reader.py": 1}
    assert [(tmp_path / f"{number}.lance").read_bytes() for number in (1, 2)] == [b"a", b"c"]
    assert "IndexError: 1\nreader.py\n\nthe trace" in (tmp_path / "2.txt").read_text()


def test_seeds_reproduce_their_damage() -> None:
    """A finding is useless unless its seed reproduces it."""
    whole = sound_file("list<string>", "some nulls", FileVersion.V2_1)
    once, again = ([Damager(random.Random(3)).damaged(whole) for _ in range(3)] for _ in range(2))
    assert once == again
    assert any(value != whole for value in once)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_rejoined_files_read_as_before(version: FileVersion) -> None:
    """If taking a file apart and joining it changed the file, every finding
    could be an artefact.
    """
    whole = sound_file("list<list<int64>>", "some nulls", version)
    joined = Parts.of(whole).joined()
    assert Parts.of(joined).columns == Parts.of(whole).columns
    assert find_harm(joined) is None


def change_layout(change: Callable[[Any], None]) -> Callable[[Parts], None]:
    """Return a change of a file: one of the encoding of its first page."""

    def changed(parts: Parts) -> None:
        page = parts.columns[0].pages[0]
        wrapped = AnyMessage.FromString(page.encoding.direct.encoding)
        layout = encodings_v2_1_pb2.PageLayout.FromString(wrapped.value)
        change(layout)
        wrapped.value = layout.SerializeToString()
        page.encoding.direct.encoding = wrapped.SerializeToString()

    return changed


def more_items_than_can_be_counted(layout: Any) -> None:
    layout.mini_block_layout.num_items = 2**64 - 1


def vectors_of_the_greatest_length(parts: Parts) -> None:
    parts.descriptor.schema.fields[0].logical_type = f"fixed_size_list:float:{2**31 - 1}"


def values_of_the_greatest_width(parts: Parts) -> None:
    parts.descriptor.schema.fields[0].logical_type = f"fixed_size_binary:{2**31 - 1}"


EARLIER_FINDINGS: dict[str, tuple[str, str, FileVersion, Callable[[Parts], None]]] = {
    "more items than a machine word counts": (
        *("list<int32>", "some nulls", FileVersion.V2_2),
        change_layout(more_items_than_can_be_counted),
    ),
    "null vectors of two billion items": (
        *("fsl<float, 1>", "all null", FileVersion.V2_1),
        vectors_of_the_greatest_length,
    ),
    "null values of two gigabytes": (
        *("fixed_size_binary[1]", "all null", FileVersion.V2_0),
        values_of_the_greatest_width,
    ),
}
"""Damage that was once harmful: a column, a shape, a version, and a change."""


@pytest.mark.parametrize("name", EARLIER_FINDINGS)
def test_earlier_findings_do_no_harm(name: str) -> None:
    """Each row of the table once crashed the reader, hung it or exhausted the memory."""
    column, shape, version, change = EARLIER_FINDINGS[name]
    parts = Parts.of(sound_file(column, shape, version))
    before = parts.joined()
    change(parts)
    assert parts.joined() != before
    finding = find_harm(parts.joined())
    assert finding is None, finding
