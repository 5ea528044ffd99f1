"""Tables that old pylances wrote are read as those read them.

The archives stand beside this file; `make_old_writers.py` made them, PROVENANCE.md says of each.
"""

import tarfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import lance_stream
from tests.golden.archives import unpack

FOLDER: Final = Path(__file__).parent / "old_writers"
ARCHIVES: Final = sorted(FOLDER.glob("*.tar.xz"))


def extracted(archive: Path, folder: Path) -> list[Path]:
    """Return the folders of the tables in an archive."""
    with tarfile.open(archive) as tar:
        unpack(tar, folder)
    return sorted(folder.iterdir())


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.floors
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_tables_of_old_writers_read_exactly(archive: Path, tmp_path: Path) -> None:
    """Rows and schema must be those that the writing release itself returned, not those of today's
    pylance.
    """
    folders = extracted(archive, tmp_path)
    assert len(folders) >= 8
    for folder in folders:
        expected = pa.ipc.open_file(str(folder / "expected.arrow")).read_all()
        table = lance_stream.open_dataset(str(folder / "table.lance"))
        assert table.to_table().to_pydict() == expected.to_pydict(), folder.name
        assert table.to_table().schema.equals(expected.schema), folder.name
        offsets = sorted({0, table.count_rows() // 2, table.count_rows() - 1})
        assert table.take(offsets).to_pydict() == expected.take(pa.array(offsets)).to_pydict(), (
            folder.name
        )


def test_all_old_file_versions_are_present() -> None:
    """A missing archive would make the reading test pass without its release."""
    writers = {archive.name.removesuffix(".tar.xz") for archive in ARCHIVES}
    assert {"0.4.21", "0.10.18", "0.16.1", "0.30.0", "0.38.3", "1.0.4", "11.0.0"} <= writers
