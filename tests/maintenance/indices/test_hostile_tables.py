"""Rounds beside other writers, and on tables whose indices are unknown, damaged or odd."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.maintenance.indices import building
from lance_stream.maintenance.indices.background import BackgroundIndexing, IndexRound
from lance_stream.table.operations.versions import CreateIndex
from lance_stream.table.paths import index_folder
from lance_stream.write.planning import commit_planned
from tests.maintenance.indices.tables import (
    ANY_ROW,
    Gate,
    index_named,
    indexed_table,
    missing_by_name,
    rows,
)

pytestmark = pytest.mark.oracle


def round_of(uri: str) -> IndexRound | None:
    """Run a round to its end, and return its outcome."""
    indexing = BackgroundIndexing(ANY_ROW)
    indexing.after_batch(lambda: lance_stream.open_dataset(uri).table)
    assert indexing.wait(60)
    return indexing.last_round


def check(uri: str) -> None:
    """Check that searches through indices find what a scan does."""
    ds = lance.dataset(uri)
    for column in {"id", "g", "h"} & set(ds.schema.names):
        for value in (0, 1, 2, 7, 70):
            filter = f"{column} = {value}"
            indexed, scanned = (
                sorted(
                    map(
                        str, ds.scanner(filter=filter, use_scalar_index=flag).to_table().to_pylist()
                    )
                )
                for flag in (True, False)
            )
            assert indexed == scanned, filter
    assert lance_stream.open_dataset(uri).verify() == []


def drop_index(ds: Dataset) -> None:
    lance.dataset(ds.uri).drop_index("g_idx")


def create_index(ds: Dataset) -> None:
    lance.dataset(ds.uri).create_scalar_index("g", "BTREE", name="other_idx")


def replace_index(ds: Dataset) -> None:
    lance.dataset(ds.uri).create_scalar_index("g", "BTREE", replace=True, name="g_idx")


MEANWHILE: tuple[Callable[[Dataset], object], ...] = (
    lambda ds: ds.compact(),
    lambda ds: ds.restore(1),
    lambda ds: ds.overwrite(rows(0, 80)),
    lambda ds: lance.dataset(ds.uri).drop_columns(["g"]),
    lambda ds: ds.rename_columns({"g": "h"}),
    lambda ds: ds.delete("true"),
    drop_index,
    create_index,
    replace_index,
)
NAMES = (
    "compact", "restore", "overwrite", "drop column", "rename column", "delete all",
    "drop index", "create index", "replace index",
)  # fmt: skip


@pytest.mark.parametrize("act", MEANWHILE, ids=NAMES)
def test_rounds_survive_concurrent_changes(
    uri: str, gate: Gate, act: Callable[[Dataset], object]
) -> None:
    """Index builds take long, and any change beneath them must lead to a correct index or a new
    round.
    """
    indexing = BackgroundIndexing(ANY_ROW)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    indexing.after_batch(lambda: lance_stream.open_dataset(uri).table)
    assert gate.is_reached.wait(30)
    act(lance_stream.open_dataset(uri))
    gate.is_open.set()
    assert indexing.wait(60)
    check(uri)
    assert round_of(uri) is None or set(missing_by_name(uri).values()) <= {0}
    lance_stream.open_dataset(uri).delete("id = 7")
    check(uri)


def test_unknown_index_kinds_are_reported(uri: str, gate: Gate) -> None:
    """A newer Lance may add kinds, which must not stop the refresh of the others."""
    gate.is_open.set()
    edit_index(uri, "g_idx", details=("/lance.table.MadeUpIndexDetails", b""))
    lance_stream.open_dataset(uri).append(rows(60, 90))
    result = round_of(uri)
    assert result is not None
    assert set(result.problems) == {"g_idx"}
    assert missing_by_name(uri) == {"g_idx": 30, "id_idx": 0}


def test_panics_of_pylance_are_reported(uri: str, gate: Gate) -> None:
    """Pylance computes coverage that a writer did not state, and panics for this kind of index."""
    gate.is_open.set()
    edit_index(uri, "g_idx", fragment_bitmap=b"")
    lance_stream.open_dataset(uri).append(rows(60, 90))
    result = round_of(uri)
    assert result is not None
    assert result.error is None
    assert result.problems == {"id_idx": "not implemented"}
    assert missing_by_name(uri) == {"g_idx": None, "id_idx": 30}


@pytest.mark.parametrize("damage", ["emptied", "cut", "garbled", "deleted"])
@pytest.mark.parametrize("name", ["g_idx", "id_idx"])
def test_damaged_index_files_are_reported(uri: str, gate: Gate, name: str, damage: str) -> None:
    """Empty, short or garbled files fail in different places of pylance, and each must name its
    index only.
    """
    gate.is_open.set()
    folder = Path(uri) / index_folder(index_named(uri, name).uuid)
    for file in folder.iterdir():
        data = file.read_bytes()
        garbled = bytes(number ^ 0x55 for number in data)
        file.write_bytes({"emptied": b"", "cut": data[: len(data) // 2]}.get(damage, garbled))
        if damage == "deleted":
            file.unlink()
    lance_stream.open_dataset(uri).append(rows(60, 90))
    result = round_of(uri)
    assert result is not None
    assert result.error is None
    assert set(result.problems) == {name}
    assert ("are missing in" in result.problems[name]) == (damage == "deleted")
    missing = missing_by_name(uri)
    assert missing.pop(name) == 30
    assert set(missing.values()) == {0}


@pytest.mark.parametrize("is_emptied", [False, True])
def test_indices_on_struct_fields_stay_correct(
    tmp_path: Path, gate: Gate, is_emptied: bool
) -> None:
    """Pylance updates such an index, but cannot rebuild it once it covers no rows."""
    gate.is_open.set()
    uri = str(tmp_path / "nested")
    table = pa.table({"id": [1, 2], "place": [{"city": "Ulm"}, {"city": "Bonn"}]})
    lance_stream.create_dataset(uri, table)
    lance.dataset(uri).create_scalar_index("place.city", "BTREE", name="city_idx")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    if is_emptied:
        lance_stream.open_dataset(uri).delete("true").compact()
    lance_stream.open_dataset(uri).append(table)
    result = round_of(uri)
    assert result is not None
    assert set(result.problems) == ({"city_idx"} if is_emptied else set())
    assert missing_by_name(uri)["id_idx"] == 0
    assert lance.dataset(uri).count_rows("place.city = 'Ulm'") == 2 - is_emptied


def test_empty_tables_need_no_round(uri: str, gate: Gate) -> None:
    """Without fragments there is nothing to index, and indices must continue when rows return."""
    gate.is_open.set()
    lance_stream.open_dataset(uri).delete("true")
    assert round_of(uri) is None
    lance_stream.open_dataset(uri).append(rows(60, 90))
    result = round_of(uri)
    assert result is not None
    assert result.problems == {}
    assert set(missing_by_name(uri).values()) == {0}
    check(uri)


def test_vector_indices_wait_for_vectors(tmp_path: Path, gate: Gate) -> None:
    """Clusters cannot be assigned to nulls only, and the other indices of the table must not
    wait.
    """
    gate.is_open.set()
    uri = str(tmp_path / "vectors")
    kind = pa.list_(pa.float32(), 4)
    vectors = pa.array(np.random.default_rng(1).random((300, 4)).tolist(), kind)
    lance_stream.create_dataset(uri, pa.table({"id": range(300), "v": vectors}))
    lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=2)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance_stream.open_dataset(uri).delete("true")
    lance_stream.open_dataset(uri).append(pa.table({"id": range(9), "v": pa.nulls(9, kind)}))
    result = round_of(uri)
    assert result is not None
    assert result.error is None
    assert missing_by_name(uri)["id_idx"] == 0
    lance_stream.open_dataset(uri).append(pa.table({"id": range(300), "v": vectors}))
    result = round_of(uri)
    assert result is not None
    assert result.problems == {}
    assert set(missing_by_name(uri).values()) == {0}


def test_branches_have_separate_rounds(uri: str, gate: Gate) -> None:
    """A branch has its own versions, so its index must not be committed to the main branch."""
    gate.is_open.set()
    lance_stream.open_dataset(uri).branches.create("dev")
    dev = lance_stream.open_dataset(uri, branch="dev").append(rows(60, 90))
    indexing = BackgroundIndexing(ANY_ROW)
    indexing.after_batch(lambda: lance_stream.open_dataset(uri, branch="dev").table)
    assert indexing.wait(60)
    assert indexing.last_round is not None
    assert indexing.last_round.version == dev.version + 1
    assert set(missing_by_name(dev.uri).values()) == {0}
    assert set(missing_by_name(uri).values()) == {0}
    assert lance_stream.open_dataset(uri).count_rows() == 60
    check(uri)


def edit_index(uri: str, name: str, **changes: object) -> None:
    """Commit an index with other metadata, as another writer might."""
    index = index_named(uri, name)
    edited = replace(index, **changes)  # type: ignore[arg-type]  # fields of IndexMetadata
    table = lance_stream.open_dataset(uri).table
    commit_planned(table, CreateIndex((replace(edited, uuid=b"\x07" * 16),), (index,)))
    source = Path(uri) / index_folder(index.uuid)
    target = Path(uri) / index_folder(b"\x07" * 16)
    source.rename(target)


def test_interrupt_inside_pylance_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while pylance waits for our lock must stop the program, not report a bad index."""
    uri = str(tmp_path / "t")
    indexed_table(uri)
    lance_stream.open_dataset(uri).append(rows(60, 70))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "_read_transaction", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lance_stream.open_dataset(uri).optimize_indices()
