"""Which outcomes of pylance are errors."""

import re
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import IndexBuildError, IndexCoverage
from lance_stream.maintenance.indices import update_indices as updates
from lance_stream.maintenance.indices.building import UNCHANGED, Built
from lance_stream.maintenance.indices.update_indices import update_indices
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import CreateIndex


def index(name: str, kind: str, indexed: int | None) -> IndexCoverage:
    return IndexCoverage(name, kind, ("x",), indexed, 3, 1, None, 1, None)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> TableVersion:
    """A table in memory, of which pylance could build indices."""
    monkeypatch.setattr(updates, "check_pylance", lambda: None)
    monkeypatch.setattr(updates, "lance_location", lambda _: None)
    monkeypatch.setattr(updates, "request_of", lambda *_, **__: None)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"x": [1]}))
    return ds.table


def answer(
    monkeypatch: pytest.MonkeyPatch, indices: list[IndexCoverage], built: Built
) -> list[Any]:
    """Let pylance build some of the indices; return what is committed."""
    committed: list[Any] = []

    def commit(table: TableVersion, result: Built, **_: Any) -> TableVersion:
        committed.append(result)
        return table.at(replace(table.manifest, version=table.version + 1))

    monkeypatch.setattr(updates, "index_coverage", lambda _: indices)
    monkeypatch.setattr(updates, "build", lambda *_: built)
    monkeypatch.setattr(updates, "commit_built", commit)
    return committed


@pytest.mark.parametrize(
    ("kind", "indexed", "problem", "is_error"),
    [
        ("IVF_PQ", 0, UNCHANGED, False),
        ("VECTOR", None, UNCHANGED, False),
        ("IVF_PQ", 5, UNCHANGED, True),
        ("IVF_PQ", 0, "its files are damaged", True),
        ("BTREE", 0, UNCHANGED, True),
        ("BTREE", 5, "its files are damaged", True),
    ],
)
def test_untrained_vector_indices_wait(
    table: TableVersion,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    indexed: int | None,
    problem: str,
    is_error: bool,
) -> None:
    """There are too few rows to train them; pylance leaves others alone if they are damaged."""
    built = Built(problems={"i": problem})
    committed = answer(monkeypatch, [index("i", kind, indexed)], built)
    if is_error:
        match = re.escape(f"could not update the index i. i: {problem}. The table is unchanged")
        with pytest.raises(IndexBuildError, match=match):
            update_indices(table)
    else:
        result = update_indices(table)
        assert (result.table.version, result.names) == (table.version, ())
    assert committed == []


def test_errors_name_all_damaged_indices(
    table: TableVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user repairs them all, and needs to know that the others are up to date."""
    operation = CreateIndex((IndexMetadata(bytes(16), (0,), "c", 1),))
    built = Built(Transaction(1, "a", operation), {"a": "bad", "b": "worse"})
    indices = [index(name, "BTREE", 1) for name in "abc"]
    committed = answer(monkeypatch, indices, built)
    match = re.escape(
        "could not update the indices a, b. a: bad. b: worse. c are up to date in version 2."
    )
    with pytest.raises(IndexBuildError, match=match):
        update_indices(table)
    assert committed == [built]
    answer(monkeypatch, indices, replace(built, problems={}))
    assert update_indices(table).names == ("c",)
    answer(monkeypatch, [], built)
    assert update_indices(table).names == ()
