"""A table with an index of every kind that pylance makes, and what is done to it.

The acts are drawn by dice, ours and pylance's. `check` asks each index, and compares with what a
scan answers, and with distances and words that are computed here.
"""

import random
from collections.abc import Callable
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream import RetryableConflictError
from lance_stream.maintenance.indices.building import build
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.maintenance.indices.update_indices import commit_built, names_to_build, request_of
from lance_stream.table.indices import decode_index_section

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
        pa.field("v", pa.list_(pa.float32(), 8)),
        pa.field("place", pa.struct([pa.field("city", pa.string())])),
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

    def __init__(self, uri: str, seed: int, *, stable_row_ids: bool, is_new: bool = True) -> None:
        self.uri, self.dice, self.next_key = uri, random.Random(seed), 30
        if not is_new:
            return
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
        return {entry.name for entry in decode_index_section(section or b"")}

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
            "v": [[float(self.dice.randint(0, 9)) for _ in range(8)] for _ in keys],
            "place": [None if word is None else {"city": word} for word in pick(words[0])],
        }
        return pa.table({name: columns[name] for name in SCHEMA.names}, SCHEMA)

    def new_keys(self, num: int) -> range:
        self.next_key += num
        return range(self.next_key - num, self.next_key)

    def sample_keys(self, num: int) -> list[int]:
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
        self.ours.upsert(self.rows([*self.sample_keys(5), *self.new_keys(2)]), on=["id"])

    def upsert_some_columns(self) -> None:
        names = ["id", *self.dice.sample(SCHEMA.names[1:], 2)]
        self.ours.upsert(self.rows(self.sample_keys(5)).select(names), on=["id"])

    def upsert_and_delete(self) -> None:
        keys = self.sample_keys(8)
        rows = self.rows(keys).append_column("gone", pa.array([key % 2 == 0 for key in keys]))
        self.ours.upsert(rows, on=["id"], delete_when="gone", except_columns=["gone"])

    def compact(self) -> None:
        self.ours.compact(self.dice.choice([20, 1000]))

    def overwrite(self) -> None:
        self.ours.overwrite(self.rows(self.new_keys(20)))

    def restore(self) -> None:
        self.ours.restore(self.dice.randint(1, self.ours.version))

    def update_indices(self) -> None:
        self.ours.optimize_indices()

    def update_indices_beside(self, act: Callable[["IndexedTable"], None]) -> bool:
        """Bring indices up to date while something else is done; return whether it succeeded."""
        table = self.ours.table
        names = names_to_build(index_coverage(table), None)
        built = build(request_of(table, names), table.store) if names else None
        act(self)
        if built is None or built.transaction is None:
            return False
        try:
            commit_built(table, built)
        except RetryableConflictError:
            return False
        return True

    # --- pylance's

    def index(self) -> None:
        for column, kind in KINDS.items():
            self.theirs.create_scalar_index(column, kind, replace=True)
        self.theirs.create_index("v", "IVF_FLAT", num_partitions=2, replace=True)

    def optimize(self) -> None:
        self.theirs.optimize.optimize_indices()

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
            matches = self.theirs.scanner(full_text_query=word, columns=["id"])
            if "text_idx" in {
                describe_index.name for describe_index in self.theirs.describe_indices()
            }:
                assert keys_of(matches) == expected, word

    def check_vectors(self) -> None:
        rows = self.theirs.to_table(columns=["id", "v"], filter="v IS NOT NULL")
        if rows.num_rows < 5:
            return
        query = np.array([self.dice.randint(0, 9) for _ in range(8)], np.float32)
        vectors = np.stack(rows["v"].to_numpy(zero_copy_only=False))
        distances = np.sort(((vectors - query) ** 2).sum(axis=1))[:5]
        nearest = {"column": "v", "q": query, "k": 5, "nprobes": 100}
        neighbours = self.theirs.to_table(nearest=nearest, columns=["id", "_distance"])
        assert np.allclose(np.sort(neighbours["_distance"].to_numpy()), distances)


def keys_of(scanner: Any) -> list[int]:
    return sorted(scanner.to_table()["id"].to_pylist())


ACTS: tuple[Callable[[IndexedTable], None], ...] = (
    IndexedTable.append, IndexedTable.delete, IndexedTable.delete_first,
    IndexedTable.update_indexed, IndexedTable.upsert, IndexedTable.upsert_some_columns,
    IndexedTable.upsert_and_delete, IndexedTable.compact, IndexedTable.overwrite,
    IndexedTable.restore, IndexedTable.update_indices,
)  # fmt: skip
