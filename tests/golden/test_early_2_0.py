"""Files of version 2.0 from before it was stable: strings as lists of bytes, packed, compressed.

The archives stand beside this file; `make_early_2_0.py` made them, PROVENANCE.md says of each.
"""

import tarfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import lance_stream
from tests.golden.archives import unpack

ARCHIVES: Final = sorted((Path(__file__).parent / "early_2_0").glob("*.tar.xz"))


@pytest.mark.floors
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_tables_of_early_writers_read_exactly(archive: Path, tmp_path: Path) -> None:
    """Writers of 0.12 to 0.15 laid out strings and packed pages differently, and their tables
    still exist.
    """
    with tarfile.open(archive) as tar:
        unpack(tar, tmp_path)
    expected = pa.ipc.open_file(str(tmp_path / "expected.arrow")).read_all()
    table = lance_stream.open_dataset(str(tmp_path / "table.lance"))
    assert table.to_table().to_pydict() == expected.to_pydict()
    assert table.to_table().schema.equals(expected.schema)
    offsets = [0, 5, 333, 699]
    assert table.take(offsets).to_pydict() == expected.take(pa.array(offsets)).to_pydict()


def test_every_early_writers_encoding_is_present() -> None:
    """A missing archive would make the reading test pass without its encoding."""
    names = {archive.name.removesuffix(".tar.xz") for archive in ARCHIVES}
    assert names == {"0.12.3-plain", "0.12.3-zstd", "0.14.1-zstd", "0.15.0-bitpacked"}
