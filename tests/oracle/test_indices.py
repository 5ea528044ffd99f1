"""Indices by pylance stay right, whatever we do to their table: they answer what a scan answers.

One table with an index of every kind that pylance builds; our verbs in random order, and some of
pylance's between them. After each, every index is asked, and so are the rows themselves.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.table.indices import decode_index_section
from lance_stream.upsert.in_place_costs import FragmentCosts

pytestmark = pytest.mark.oracle

WORDS = ["apple", "banana", "cherry", "damson", "elder", "fig"]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("g", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("name", pa.string()),
        pa.field("text", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)
KINDS = {
    "id": "BTREE",
    "g": "BITMAP",
    "x": "ZONEMAP",
    "s": "BLOOMFILTER",
    "name": "NGRAM",
    "text": "INVERTED",
    "tags": "LABEL_LIST",
}
CONDITIONS = (
    "id = 7",
    "id >= 5 AND id < 15",
    "g = 1",
    "g IS NULL",
    "x > 10.0",
    "x IS NULL",
    "s = 's3'",
    "s IS NULL",
    "contains(name, 'nan')",
    "array_has_any(tags, ['fig', 'apple'])",
)


class IndexedTable:
    """A table with an index on each column, and the dice that say what is done to it."""

    def __init__(self, uri: str, seed: int, *, stable_row_ids: bool) -> None:
        self.uri, self.dice, self.next_key = uri, random.Random(seed), 30
        lance.write_dataset(
            self.rows(range(30)),
            uri,
            max_rows_per_file=12,
            enable_stable_row_ids=stable_row_ids,
        )
        self.index()

    @property
    def ours(self) -> Any:
        return lance_stream.open_dataset(self.uri)

    @property
    def theirs(self) -> Any:
        return lance.dataset(self.uri)

    @property
    def index_names(self) -> set[str]:
        section = self.ours.table.manifest.index_section
        return {each.name for each in decode_index_section(section or b"")}

    def rows(self, keys: Any) -> pa.Table:
        def pick(choices: Any) -> list[Any]:
            return [self.dice.choice(choices) for _ in keys]

        words = [[None, *WORDS]] * 2
        columns = {
            "id": list(keys),
            "g": pick([None, 0, 1, 2]),
            "x": pick([None, 1.0, 5.0, 20.0, 30.0]),
            "s": pick([None, "s1", "s2", "s3"]),
            "name": pick(words[0]),
            "text": [
                " ".join(self.dice.sample(WORDS, 2)) if self.dice.random() < 0.9 else None
                for _ in keys
            ],
            "tags": [self.dice.sample(WORDS, self.dice.randint(0, 3)) for _ in keys],
            "v": [[float(self.dice.randint(0, 9)) for _ in range(4)] for _ in keys],
        }
        return pa.table({name: columns[name] for name in SCHEMA.names}, SCHEMA)

    def new_keys(self, num: int) -> range:
        self.next_key += num
        return range(self.next_key - num, self.next_key)

    def known_keys(self, num: int) -> list[int]:
        return self.dice.sample(range(self.next_key), num)

    # --- ours

    def append(self) -> None:
        self.ours.append(self.rows(self.new_keys(6)))

    def delete(self) -> None:
        self.ours.delete(f"id % {self.dice.randint(3, 7)} = 0")

    def delete_first(self) -> None:
        self.ours.delete(f"id < {self.dice.randint(0, 14)}")

    def update_indexed(self) -> None:
        values = self.dice.choice([{"g": "1"}, {"x": "x + 10.0"}, {"s": "'s3'"}, {"name": "text"}])
        self.ours.update(values, where=f"id % {self.dice.randint(2, 5)} = 1")

    def upsert(self) -> None:
        self.ours.upsert(self.rows([*self.known_keys(5), *self.new_keys(2)]), on=["id"])

    def upsert_some_columns(self) -> None:
        names = ["id", *self.dice.sample(SCHEMA.names[1:], 2)]
        self.ours.upsert(self.rows(self.known_keys(5)).select(names), on=["id"])

    def upsert_and_delete(self) -> None:
        keys = self.known_keys(8)
        rows = self.rows(keys).append_column("gone", pa.array([key % 2 == 0 for key in keys]))
        self.ours.upsert(rows, on=["id"], delete_when="gone", except_columns=["gone"])

    def compact(self) -> None:
        self.ours.compact(self.dice.choice([20, 1000]))

    def overwrite(self) -> None:
        self.ours.overwrite(self.rows(self.new_keys(20)))

    def restore(self) -> None:
        self.ours.restore(self.dice.randint(1, self.ours.version))

    # --- pylance's

    def index(self) -> None:
        for column, kind in KINDS.items():
            self.theirs.create_scalar_index(column, kind, replace=True)
        self.theirs.create_index("v", "IVF_FLAT", num_partitions=2, replace=True)

    def optimize(self) -> None:
        self.theirs.optimize.optimize_indices()

    def merge(self) -> None:
        rows = self.rows([*self.known_keys(5), *self.new_keys(2)])
        merge = self.theirs.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(rows)

    def compact_by_pylance(self) -> None:
        self.theirs.optimize.compact_files(target_rows_per_fragment=20)
        # After its own, dead rows take the places of near ones.
        self.index()

    # --- questions

    def check(self) -> None:
        ds = self.theirs
        ds.validate()
        for condition in CONDITIONS:
            assert keys_of(ds.scanner(filter=condition)) == keys_of(
                ds.scanner(filter=condition, use_scalar_index=False)
            ), condition
        self.check_text()
        self.check_vectors()

    def check_text(self) -> None:
        rows = self.theirs.to_table(columns=["id", "text"]).to_pylist()
        for word in WORDS[:2]:
            expected = sorted(row["id"] for row in rows if word in (row["text"] or "").split())
            found = self.theirs.scanner(full_text_query=word, columns=["id"])
            if "text_idx" in {each.name for each in self.theirs.describe_indices()}:
                assert keys_of(found) == expected, word

    def check_vectors(self) -> None:
        rows = self.theirs.to_table(columns=["id", "v"], filter="v IS NOT NULL")
        if rows.num_rows < 5:
            return
        wanted = np.array([self.dice.randint(0, 9) for _ in range(4)], np.float32)
        vectors = np.stack(rows["v"].to_numpy(zero_copy_only=False))
        distances = np.sort(((vectors - wanted) ** 2).sum(axis=1))[:5]
        nearest = {"column": "v", "q": wanted, "k": 5, "nprobes": 100}
        found = self.theirs.to_table(nearest=nearest, columns=["id", "_distance"])
        assert np.allclose(np.sort(found["_distance"].to_numpy()), distances)


def keys_of(scanner: Any) -> list[int]:
    return sorted(scanner.to_table()["id"].to_pylist())


ACTS: tuple[Callable[[IndexedTable], None], ...] = (
    IndexedTable.append, IndexedTable.delete, IndexedTable.delete_first,
    IndexedTable.update_indexed, IndexedTable.upsert, IndexedTable.upsert_some_columns,
    IndexedTable.upsert_and_delete, IndexedTable.compact, IndexedTable.overwrite,
    IndexedTable.restore,
)  # fmt: skip
OTHERS: tuple[Callable[[IndexedTable], None], ...] = (
    IndexedTable.index, IndexedTable.optimize, IndexedTable.merge, IndexedTable.compact_by_pylance,
)  # fmt: skip


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("act", ACTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("stable_row_ids", [True, False], ids=["stable ids", "addresses"])
def test_indices_stay_right_after_operations(
    tmp_path: Path, act: Callable[[IndexedTable], None], stable_row_ids: bool
) -> None:
    table = IndexedTable(str(tmp_path / "t"), 7, stable_row_ids=stable_row_ids)
    before = table.ours.version
    act(table)
    assert table.ours.version > before
    table.check()
    table.optimize()
    table.check()


@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("seed", range(8, 12))
def test_deferred_index_remaps_are_followed(
    tmp_path: Path, act: Callable[[IndexedTable], None], seed: int
) -> None:
    table = IndexedTable(str(tmp_path / "t"), seed, stable_row_ids=False)
    table.append()
    table.delete()
    table.theirs.optimize.compact_files(defer_index_remap=True)
    assert "__lance_frag_reuse" in table.index_names
    act(table)
    table.check()
    table.append()
    table.compact()
    table.check()
    table.optimize()
    table.check()


def test_dead_rows_crowd_out_no_neighbours(
    tmp_path: Path,
) -> None:
    """A nearest-neighbour query finds as many live rows as it asks for."""
    uri = str(tmp_path / "t")
    vectors = pa.array([[float(key)] * 4 for key in range(30)], SCHEMA.field("v").type)
    rows = pa.table({"id": pa.array(range(30)), "v": vectors})
    lance.write_dataset(rows, uri, max_rows_per_file=12, enable_stable_row_ids=True)
    lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=2)
    ds = lance_stream.open_dataset(uri).delete("id < 3").compact()
    nearest = {"column": "v", "q": np.zeros(4, np.float32), "k": 5}
    assert len(ds.table.manifest.fragments) == 1
    assert lance.dataset(uri).to_table(nearest=nearest)["id"].to_pylist() == [3, 4, 5, 6, 7]


@pytest.mark.some_cases(one_in=4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stable_row_ids", [True, False], ids=["stable ids", "addresses"])
def test_indices_stay_right_in_random_histories(
    tmp_path: Path, seed: int, stable_row_ids: bool
) -> None:
    dice = random.Random(seed)
    table = IndexedTable(str(tmp_path / "t"), seed, stable_row_ids=stable_row_ids)
    for _ in range(10):
        act = dice.choice(OTHERS if dice.random() < 0.25 else ACTS)
        act(table)
        table.check()
    assert table.ours.verify() == []


@pytest.mark.parametrize("kind", ["ZONEMAP", "BLOOMFILTER", "BTREE", "BITMAP"])
@pytest.mark.parametrize("by_update", [False, True])
def test_values_that_were_null_are_not_found_as_nulls(
    tmp_path: Path, kind: str, by_update: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference keeps zones of fragments that left the coverage, if it updates the index."""
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: True))
    uri = str(tmp_path / "t")
    numbers = [None if each % 4 == 0 else each for each in range(20)]
    rows = pa.table({"id": range(20), "x": numbers, "name": ["a"] * 20})
    lance.write_dataset(rows, uri, max_rows_per_file=10, enable_stable_row_ids=True)
    lance.dataset(uri).create_scalar_index("x", kind)
    ds = lance_stream.open_dataset(uri)
    if by_update:
        ds.update({"x": "id + 100"}, where="id = 4")
    else:
        ds.upsert(pa.table({"x": [104], "id": [4]}), on="id")
    lance.dataset(uri).optimize.optimize_indices()
    found = lance.dataset(uri).to_table(filter="x IS NULL")["id"].to_pylist()
    assert sorted(found) == [0, 8, 12, 16]
    assert lance.dataset(uri).to_table(filter="x = 104")["id"].to_pylist() == [4]
