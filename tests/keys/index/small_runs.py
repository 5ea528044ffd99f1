"""A key index for small tables: runs of a few rows, in chunks of 16 keys."""

from collections.abc import Iterator

import pytest

from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.index import key_index
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.tombstone_files import DELETE_FILES
from lance_stream.upsert.upsert import upsert
from tests.keys.keyed_tables import ON_ID, rows, use_small_runs


def small_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs of a few rows are written, shared and merged, in chunks of 16 keys; a fixture."""
    use_small_runs(monkeypatch.setattr)
    restart()
    yield
    restart()


def restart() -> None:
    """Forget everything, as a new process would."""
    key_index.clear_key_indices()
    cached_key_bounds._columns.clear()
    DELETE_FILES.forget()


def runs_of(table: TableVersion) -> list[str]:
    """Return the paths of a table's runs."""
    return [file.path for file in table.store.list("_lance_stream/key_index")]


def indexed(table: TableVersion) -> TableVersion:
    """Return a later version of a table, with an index of its keys, for a new process."""
    for number in range(1, 4):
        table = upsert(table, rows([number], number), ON_ID).table
    assert runs_of(table)
    restart()
    return table
