"""A manifest with any one field changed is read as pylance reads it, or refused.

Where pylance cannot read it (it may end the whole process), the rows are the table's own. What is
never right is other rows of which neither an error nor `verify` tells.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.errors import LanceStreamError
from tests.dataset.manifest_edits import join_manifest, newest_manifest, split_manifest
from tests.oracle.manifest_mutations import mutations
from tests.sampling import some_of

pytestmark = pytest.mark.oracle

Rows = list[list[str]]
"""For each row its values, as texts in which NaN and -0.0 are themselves."""


def make(path: Path, version: str) -> None:
    for first, stop in ((0, 20), (20, 30)):
        numbers = range(first, stop)
        rows = pa.table(
            {
                "id": list(numbers),
                "name": [f"n{number}" for number in numbers],
                "s": [{"x": number, "y": number / 2} for number in numbers],
                "l": [[number, number + 1] for number in numbers],
            }
        )
        lance.write_dataset(
            rows,
            path,
            mode="append",
            data_storage_version=version,
            enable_stable_row_ids=version == "2.2",
        )
    ds = lance.dataset(path)
    ds.delete("id % 7 = 3")
    ds.add_columns({"z": "id * 2"})


def rows_of(table: pa.Table) -> Rows:
    columns = [_texts(column) for column in table.columns]
    return [list(value) for value in zip(*columns, strict=True)]


def _texts(column: pa.ChunkedArray) -> list[str]:
    try:
        return list(map(str, column.to_pylist()))
    except ValueError:  # structs with two parts of one name are no dictionaries
        parts = (_texts(value) for value in column.flatten())
        return list(map(str, zip(*parts, strict=True)))


def ours(path: str) -> Rows | None:
    """Return what we read; None where it is refused."""
    try:
        ds = lance_stream.open_dataset(path)
        table = ds.to_table()
        assert ds.count_rows() == table.num_rows
    except LanceStreamError:
        return None
    return rows_of(table)


def theirs(path: str) -> Rows | None:
    """Return what pylance reads; None where it cannot."""
    try:
        return rows_of(lance.dataset(path).to_table())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def is_reported(what: str, path: Path) -> bool:
    """Return whether a difference is expected.

    Of two data files of a fragment with one field, we read the last, and `verify` reports them.
    Names of columns do not change values. Whether a struct is packed, we learn from the file, and
    pylance from the metadata.
    """
    findings = lance_stream.open_dataset(path).verify()
    is_no_matter = ".name = " in what or "[lance-encoding:packed]" in what
    return is_no_matter or any(finding.rule == "fields of files" for finding in findings)


class Pylance:
    """Asks pylance in a process of its own, and in another one where that has come to an end."""

    def __init__(self) -> None:
        self._pool: Any = None

    def rows(self, path: str) -> Rows | None:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            rows: Rows | None = self._pool.submit(theirs, path).result(timeout=60)
        except BrokenProcessPool:
            self.stop()
            return None
        return rows

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_mutated_manifests_never_give_other_rows(version: str, tmp_path: Path) -> None:
    """A misread field would show wrong rows without an error."""
    path = tmp_path / "t"
    make(path, version)
    file = newest_manifest(path)
    data = file.read_bytes()
    before, body, behind = split_manifest(data)
    original = ours(str(path))
    assert original
    message = table_pb2.Manifest.FromString(body)
    changed = [(what, message.SerializeToString()) for what in mutations(message)]
    assert len(changed) > 1500
    pylance = Pylance()
    wrong = []
    try:
        for what, other in some_of(changed, 60, version):
            file.write_bytes(join_manifest(before, other, behind))
            rows = ours(str(path))
            if rows is None:
                continue
            expected = pylance.rows(str(path))
            if rows != (original if expected is None else expected) and not is_reported(what, path):
                wrong.append((what, "pylance fails" if expected is None else "pylance differs"))
    finally:
        pylance.stop()
    assert not wrong, wrong
