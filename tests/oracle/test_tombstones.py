"""Remembered deletes in a table that pylance writes to as well."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.config.tombstones import CONFIG_KEY
from lance_stream.table.paths import TOMBSTONES_DIRECTORY, VERSIONS_DIRECTORY
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("seq", pa.int64())])
INCOMING = SCHEMA.append(pa.field("op", pa.string()))
RULES = UpsertRules(
    ("id",),
    sequence_by="seq",
    delete_when="op = 'd'",
    except_columns=("op",),
    tombstones=timedelta(days=7),
)


def make_table(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"]).append(rows([1, 2, 3], 1))
    return uri


def rows(keys: list[int], seq: int) -> pa.Table:
    return pa.table({"id": keys, "seq": [seq] * len(keys)}, SCHEMA)


def changes(*events: tuple[int, int, str]) -> pa.Table:
    return pa.table(dict(zip(INCOMING.names, zip(*events, strict=True), strict=True)), INCOMING)


def keys_of(uri: str) -> list[int]:
    keys: list[int] = sorted(lance.dataset(uri).to_table()["id"].to_pylist())
    return keys


def test_pylance_commits_drop_no_tombstones(tmp_path: Path) -> None:
    """A forgotten delete would let a late event revive its row."""
    uri = make_table(tmp_path)
    upsert(open_newest(uri), changes((1, 5, "d"), (9, 5, "d")), RULES)
    (file,) = (tmp_path / "t" / TOMBSTONES_DIRECTORY).iterdir()
    assert keys_of(uri) == [2, 3]
    lance.write_dataset(rows([4], 1), uri, mode="append")
    lance.dataset(uri).update({"seq": "seq + 1"}, where="id = 2")
    lance.dataset(uri).delete("id = 3")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).optimize.compact_files()
    ours = open_newest(uri)
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert file.exists()
    assert CONFIG_KEY in lance.dataset(uri).config()
    result = upsert(ours, changes((1, 4, "u"), (9, 4, "u"), (3, 4, "u")), RULES)
    assert (result.num_late, result.num_inserted) == (2, 1)
    assert keys_of(uri) == [2, 3, 4]
    assert verify(result.table) == []


def test_tombstone_only_versions_suit_pylance(tmp_path: Path) -> None:
    """Pylance reads and extends a version that changes nothing but tombstones."""
    uri = make_table(tmp_path)
    before = lance.dataset(uri)
    result = upsert(open_newest(uri), changes((9, 5, "d")), RULES)
    now = lance.dataset(uri)
    assert now.version == result.table.version == before.version + 1
    assert now.to_table(with_row_id=True) == before.to_table(with_row_id=True)
    lance.write_dataset(rows([9], 6), uri, mode="append")
    assert keys_of(uri) == [1, 2, 3, 9]


def test_clones_remember_deletes_of_their_base(tmp_path: Path) -> None:
    """Late events may arrive at the clone as well, and the files lie in the base."""
    uri, clone = make_table(tmp_path), str(tmp_path / "clone")
    upsert(open_newest(uri), changes((1, 5, "d")), RULES)
    lance.dataset(uri).shallow_clone(clone, lance.dataset(uri).version)
    result = upsert(open_newest(clone), changes((1, 4, "u"), (2, 5, "d")), RULES)
    assert (result.num_late, keys_of(clone), keys_of(uri)) == (1, [3], [2, 3])
    again = upsert(open_newest(clone), changes((1, 4, "u"), (2, 4, "u")), RULES)
    assert again.num_late == 2


def insert_with_merge(uri: str) -> None:
    merge = lance.dataset(uri).merge_insert("id").when_not_matched_insert_all()
    merge.execute(rows([9], 4))


def insert_with_append(uri: str) -> None:
    lance.write_dataset(rows([9], 4), uri, mode="append")


@pytest.mark.parametrize("insert", [insert_with_merge, insert_with_append])
def test_a_racing_pylance_insert_is_deleted(tmp_path: Path, insert: Callable[[str], Any]) -> None:
    """Pylance inserts the row while the delete of its key is being committed."""
    uri = make_table(tmp_path)
    table = open_newest(uri)
    store = WatchedStore(table.store)

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith(VERSIONS_DIRECTORY):
            store.before = lambda _call, _path: None
            insert(uri)

    store.before = overtake
    stale = replace(table, store=store, log=ObjectStoreLog(store))
    result = upsert(stale, changes((9, 5, "d")), RULES)
    assert (result.num_deleted, result.num_remembered) == (1, 1)
    assert keys_of(uri) == [1, 2, 3]
    assert len(list((tmp_path / "t" / TOMBSTONES_DIRECTORY).iterdir())) == 1
