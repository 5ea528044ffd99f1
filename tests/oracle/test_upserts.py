"""Upserts on twins of one table, ours and pylance's: the same rows, ids, stamps and feed."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.locations import open_store
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.histories.checks.transactions import check_applied

pytestmark = pytest.mark.oracle

STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


class Twins:
    """One history written twice: by us, and by pylance."""

    def __init__(self, path: Path, rows: pa.Table, **options: Any) -> None:
        self.ours, self.theirs = str(path / "ours"), str(path / "theirs")
        for uri in (self.ours, self.theirs):
            lance.write_dataset(
                rows, uri, enable_stable_row_ids=True, max_rows_per_file=7, **options
            )

    def upsert(self, rows: pa.Table, *on: str) -> UpsertResult:
        merge = lance.dataset(self.theirs).merge_insert(list(on))
        counted = merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)
        result = upsert(open_newest(self.ours), rows, UpsertRules(on))
        assert (result.num_inserted, result.num_updated) == (
            counted["num_inserted_rows"],
            counted["num_updated_rows"],
        )
        self.check()
        return result

    def check(self) -> None:
        ours, theirs = lance.dataset(self.ours), lance.dataset(self.theirs)
        assert ours.version == theirs.version
        assert rows_of(ours) == rows_of(theirs)
        ours.validate()
        assert verify(open_newest(self.ours)) == []
        log = ObjectStoreLog(open_store(self.ours))
        assert check_applied(log, ours.version)


def rows_of(ds: Any) -> list[dict[str, Any]]:
    table = ds.to_table(columns=[*ds.schema.names, *STAMPS])
    return sorted(table.to_pylist(), key=lambda row: row["_rowid"])


def rows(keys: Any, value: float) -> pa.Table:
    keys = list(keys)
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "group": pa.array([f"g{key % 3}" for key in keys]),
            "x": pa.array([value + key for key in keys], pa.float64()),
        }
    )


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_whole_fragments_can_be_updated(tmp_path: Path, version: str) -> None:
    """The old fragment vanishes, which takes another path than a deletion file."""
    twins = Twins(tmp_path, rows(range(20), 0), data_storage_version=version)
    assert twins.upsert(rows(range(7), 1), "id").num_updated == 7
    assert twins.upsert(rows(range(40), 2), "id").num_inserted == 20


def test_partial_upserts_keep_other_columns(tmp_path: Path) -> None:
    """A column that the source does not have must not become null."""
    twins = Twins(tmp_path, rows(range(20), 0))
    result = twins.upsert(rows([3, 19, 7], 5).drop_columns(["group"]), "id")
    assert result.num_updated == 3


def test_pylance_continues_after_our_upserts(tmp_path: Path) -> None:
    """pylance updates and compacts the rows that an upsert moved."""
    twins = Twins(tmp_path, rows(range(20), 0))
    twins.upsert(rows([1, 2, 30], 5), "id")
    for uri in (twins.ours, twins.theirs):
        ds = lance.dataset(uri)
        ds.update({"x": "x + 1"}, where="id < 4")
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=100)
    assert rows_of(lance.dataset(twins.ours)) == rows_of(lance.dataset(twins.theirs))
    twins.upsert(rows([1, 2, 30, 31], 6), "id")


def test_concurrent_inserts_of_a_key_merge(
    tmp_path: Path,
) -> None:
    """A key that pylance inserts at the same time gets one row."""
    key = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, pa.field("x", pa.float64())])
    uri = str(tmp_path / "t")

    def table(*keys: int) -> pa.Table:
        return pa.table({"id": list(keys), "x": [float(key) for key in keys]}, schema)

    lance.write_dataset(table(1, 2), uri, enable_stable_row_ids=True)
    stale, ours = lance.dataset(uri), open_newest(uri)
    merge = stale.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert upsert(ours, table(2, 3), UpsertRules(("id",))).num_inserted == 1
    merge.execute(table(3, 4))
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3, 4]
    again = upsert(ours, table(4, 5), UpsertRules(("id",)))
    assert (again.num_inserted, again.num_updated) == (1, 1)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]
