"""The attempts of an upsert: which version each plans on, and what it uses of those before."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import VERSIONS_DIRECTORY
from lance_stream.upsert import attempts, update_planner
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.update_planner import MAX_KEY_HASHES
from lance_stream.upsert.upsert import upsert
from lance_stream.write.phases import Phases
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.string())])
BY_ID = UpsertRules(("id",))


def rows(*ids: int, x: str = "ours") -> pa.Table:
    return pa.table({"id": ids, "x": [x] * len(ids)}, schema=SCHEMA)


def new_table() -> Dataset:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    return ds.append(rows(1, 2, x="stored"))


def overtaken(table: TableVersion, *acts: Callable[[], object]) -> TableVersion:
    """Return the table with a store that lets another writer publish first, once for each act."""
    store, pending = WatchedStore(table.store), list(acts)

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith(VERSIONS_DIRECTORY) and pending:
            pending.pop(0)()

    store.before = overtake
    return replace(table, store=store, log=ObjectStoreLog(store))


def content(table: TableVersion) -> dict[int, str]:
    newest = Dataset(table).checkout(None).to_table().to_pydict()
    assert len(newest["id"]) == len(set(newest["id"]))
    return dict(zip(newest["id"], newest["x"], strict=True))


@pytest.mark.parametrize("num_others", range(3))
@pytest.mark.parametrize("is_current", [False, True])
def test_only_first_attempts_trust_their_version(
    num_others: int, is_current: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may have changed the same row since."""
    opened: list[TableVersion] = []

    def newest_version_of(table: TableVersion) -> TableVersion:
        opened.append(table)
        return newest(table)

    newest = attempts.newest_version_of
    monkeypatch.setattr(attempts, "newest_version_of", newest_version_of)
    ds = new_table()
    acts = [lambda: Dataset(ds.table).upsert(rows(1, 3, x="theirs"), "id")] * num_others
    table = overtaken(ds.table, *acts)
    result = upsert(table, rows(1, 4), BY_ID, is_current=is_current)
    # The others open the newest version, too, each of them once.
    assert len(opened) - num_others == num_others + (not is_current)
    assert result.table.version == ds.version + num_others + 1
    expected = {1: "ours", 2: "stored", 4: "ours"} | ({3: "theirs"} if num_others else {})
    assert content(result.table) == expected


def test_callers_can_refuse_newest_versions() -> None:
    """The caller's condition about the table has to hold in the version before the commit."""
    ds = new_table()
    seen: list[int] = []

    def check(newest: Manifest) -> None:
        seen.append(newest.version)
        if newest.version > ds.version:
            raise InvalidInputError("no longer")

    table = overtaken(ds.table, lambda: ds.append(rows(9, x="theirs")))
    with pytest.raises(InvalidInputError, match="no longer"):
        upsert(table, rows(1), BY_ID, check=check)
    assert seen == [ds.version, ds.version + 1]
    assert content(ds.table) == {1: "stored", 2: "stored", 9: "theirs"}
    assert upsert(ds.table, rows(1), BY_ID, check=lambda _: None).is_new


def test_upserts_report_their_phases() -> None:
    """The sink's progress shows where the time of a batch goes."""
    phases = Phases()
    upsert(new_table().table, rows(1), BY_ID, phases=phases)
    assert [*phases.seconds] == ["scan", "write", "commit"]


def test_unchanged_decisions_reuse_their_files() -> None:
    """Rows are written once, although other writers commit other rows first."""
    ds = new_table()
    table = overtaken(ds.table, lambda: ds.append(rows(8, x="theirs")))
    result = upsert(table, rows(1, 3), BY_ID)
    assert result.attempts == 2
    paths = {file.path for fragment in result.table.manifest.fragments for file in fragment.files}
    assert {file.path.removeprefix("data/") for file in ds.table.store.list("data")} == paths


def test_files_have_the_newest_version(tmp_path: Path) -> None:
    """Another program replaced the table by one with files of an older version, after an attempt
    had lost to a third writer.
    """
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, SCHEMA)

    def act() -> None:
        ds.upsert(rows(1, x="theirs"), "id")
        lance.write_dataset(
            SCHEMA.empty_table(),
            uri,
            mode="overwrite",
            data_storage_version="2.0",
            enable_stable_row_ids=True,
        )

    result = upsert(overtaken(ds.table, act), rows(1, 2), BY_ID)
    assert result.table.schema == ds.table.schema
    files = [file for fragment in result.table.manifest.fragments for file in fragment.files]
    assert [file.file_version for file in files] == [(2, 0)]
    assert content(ds.table) == {1: "ours", 2: "ours"}


@pytest.mark.parametrize("more", [0, 1])
def test_large_inserts_conflict_with_any_key(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction lists the keys up to a limit, and beyond it excludes none, so that no key is
    inserted twice.
    """
    monkeypatch.setattr(update_planner, "MAX_KEY_HASHES", 3)
    keys = [*range(10, 13 + more)]
    ds = new_table()
    table = overtaken(ds.table, lambda: ds.upsert(rows(12, x="theirs"), "id"))
    result = upsert(table, rows(*keys), BY_ID)
    assert content(result.table) == {1: "stored", 2: "stored"} | dict.fromkeys(keys, "ours")
    hashes = np.array(keys, np.uint64)
    planned = update_planner._inserted_keys(ds.table, BY_ID, [hashes, hashes])  # of two parts
    assert planned.key_hashes == (None if more else tuple(keys))
    assert (planned.bloom is not None) == bool(more)
    assert MAX_KEY_HASHES == 1 << 18
