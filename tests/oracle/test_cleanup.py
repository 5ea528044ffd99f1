"""Cleanup like pylance's: it deletes the same files, and each side continues after the other's."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.consumers import record_progress

pytestmark = pytest.mark.oracle

NOW = timedelta(0)


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"id": np.arange(start, stop), "x": np.arange(start, stop) / 2})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Nine versions by both writers: rows of all ages, deleted rows, an index built twice."""
    path = str(tmp_path / "t")
    ds = lance.write_dataset(rows(0, 50), path, enable_stable_row_ids=True)
    ds.create_scalar_index("id", "BTREE")
    lance_stream.open_dataset(path).append(rows(50, 60)).delete("id % 9 = 2")
    ds = lance.dataset(path)
    ds.update({"x": "x + 1"}, where="id > 55")
    ds.delete("id = 0")
    lance_stream.open_dataset(path).compact()
    lance.dataset(path).create_scalar_index("id", "BTREE", replace=True)
    return path


def files_of(uri: str) -> set[str]:
    return {str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file()}


def their_cleanup(uri: str, *, delete_unverified: bool = False) -> Any:
    return lance.dataset(uri).cleanup_old_versions(
        NOW, error_if_tagged_old_versions=False, delete_unverified=delete_unverified
    )


@pytest.mark.parametrize("tagged", [[], [2], [4, 6]])
def test_cleanup_deletes_the_files_pylance_deletes(uri: str, tagged: list[int]) -> None:
    """One file more would be a loss of data, one less a leak."""
    for number in tagged:
        lance.dataset(uri).tags.create(f"v{number}", number)
    other = f"{uri}-2"
    shutil.copytree(uri, other)
    theirs = their_cleanup(other)
    ours = lance_stream.open_dataset(uri).cleanup(NOW)
    assert files_of(uri) == files_of(other)
    assert len(ours.versions) == theirs.old_versions
    assert ours.size_bytes == theirs.bytes_removed
    counts = {
        "data files": theirs.data_files_removed,
        "transactions": theirs.transaction_files_removed,
        "deletion files": theirs.deletion_files_removed,
        "index files": theirs.index_files_removed,
    }
    assert {kind: ours.num_files.get(kind, 0) for kind in counts} == counts


def test_unverified_files_go_as_with_pylance(uri: str) -> None:
    """Young files that no version refers to may belong to a running writer."""
    fragments = lance.fragment.write_fragments(rows(0, 5), uri)
    assert len(fragments) == 1
    other = f"{uri}-2"
    shutil.copytree(uri, other)
    theirs = their_cleanup(other, delete_unverified=True)
    ours = lance_stream.open_dataset(uri).cleanup(NOW, delete_unverified=True)
    assert files_of(uri) == files_of(other)
    assert ours.size_bytes == theirs.bytes_removed


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_either_side_continues_after_a_cleanup(uri: str, first: str) -> None:
    """The second cleanup must find nothing to do, and the rows must stay."""
    before = lance.dataset(uri).to_table(with_row_id=True)
    lance.dataset(uri).tags.create("gold", 3)
    cleanups: list[Callable[[], object]] = [
        lambda: lance_stream.open_dataset(uri).cleanup(NOW),
        lambda: their_cleanup(uri),
    ]
    once, again = cleanups if first == "ours" else cleanups[::-1]
    once()
    remaining = files_of(uri)
    again()
    assert files_of(uri) == remaining
    theirs, ours = lance.dataset(uri), lance_stream.open_dataset(uri)
    assert theirs.to_table(with_row_id=True).equals(before)
    assert ours.verify() == ours.checkout("gold").verify() == []
    assert theirs.scanner(filter="id = 7").explain_plan().count("ScalarIndexQuery") == 1
    assert theirs.to_table(filter="id = 7").num_rows == 1
    theirs.delete("id = 7")
    ours = lance_stream.open_dataset(uri).append(rows(100, 101))
    assert lance.dataset(uri).count_rows() == ours.count_rows() == before.num_rows
    assert ours.verify() == []


def test_only_our_cleanup_keeps_consumers_ranges(
    uri: str,
) -> None:
    """Pylance keeps the version that a consumer tagged, and none of those after it."""
    ours = lance_stream.open_dataset(uri)
    record_progress(ours.table.refs, "totals", 4)
    ours.cleanup(NOW)
    assert ours.table.log.versions() == list(range(4, ours.version + 1))
    assert ours.changes(after=4).read_all().num_rows > 0
    their_cleanup(uri)
    assert ours.table.log.versions() == [4, ours.version]
    assert ours.checkout("lance_stream.consumer.totals").verify() == []
