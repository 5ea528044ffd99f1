"""Random histories of tables with indices of pylance, changed by both writers and kept fresh.

    python -m tests.oracle.index_histories --minutes 10 --seed 1

Each history has a table, with stable row ids or without, and indices that pylance makes: on three
columns, of kinds drawn from all that it has for them, and for most tables one on a vector.
Both writers append, delete, update, upsert all columns or some, compact and restore; columns are
renamed, dropped and added, indices dropped and made again; fragments may be changed in place. In
between, indices are brought up to date: by us, by us while one of the others does one of these
things, or by pylance. After each step, read with pylance through the indices, and filters with us,
too:

    each filter                 the rows for which Python says so, of those that a scan reads
    the nearest five vectors    those of all distances; of kinds that lose precision, they are
                                computed again from the vectors
    a word in a text            the rows whose text has it
    the coverage                after we have brought all up to date: every row

At the end the versions of the history that are left are read in the same way.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import lance
import numpy as np

import lance_stream
from lance_stream import IndexBuildError, RetryableConflictError
from lance_stream.maintenance.indices.building import build
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.maintenance.indices.update_indices import commit_built, names_to_build, request_of
from lance_stream.row_updates.in_place_costs import FragmentCosts
from tests import seeded_runs as histories
from tests.eager_indices import eager_indices
from tests.oracle.indexed_table import WORDS, IndexedTable

ORDERED: Final = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")
SCALARS: Final[dict[str, tuple[str, ...]]] = {
    "id": ORDERED,
    "g": ORDERED,
    "x": ORDERED,
    "s": ORDERED,
    "name": ("NGRAM",),
    "text": ("INVERTED",),
    "tags": ("LABEL_LIST",),
    "place.city": ("BTREE", "BITMAP"),
}
ANSWERED_BY_US: Final = ("id", "g", "x", "s", "place.city")
CODES: Final = {"num_sub_vectors": 4, "num_bits": 4}
VECTORS: Final[dict[str, dict[str, int]]] = {
    "IVF_FLAT": {},
    "IVF_SQ": {},
    "IVF_PQ": CODES,
    "IVF_RQ": {},
    "IVF_HNSW_FLAT": {},
    "IVF_HNSW_SQ": {},
    "IVF_HNSW_PQ": CODES,
}
CENTROIDS: Final = np.array([[2.0] * 8, [7.0] * 8], np.float32)
TRAINING_ROWS: Final = 256
"""With fewer, pylance may leave an index on vectors without content."""

NESTED: Final = "place_city_idx"
NUM_NEIGHBOURS: Final = 5
MANY: Final = 1000

Row = dict[str, Any]


def _is(column: str, holds: Callable[[Any], bool]) -> Callable[[Row], bool]:
    return lambda row: row[column] is not None and holds(row[column])


def _is_null(column: str) -> Callable[[Row], bool]:
    return lambda row: row[column] is None


QUESTIONS: Final[dict[str, dict[str, Callable[[Row], bool]]]] = {
    "id": {
        "id = 7": _is("id", lambda each: each == 7),
        "id >= 5 AND id < 15": _is("id", lambda each: 5 <= each < 15),
        "id IN (1, 30, 33, 90)": _is("id", lambda each: each in (1, 30, 33, 90)),
        "NOT (id >= 12)": _is("id", lambda each: each < 12),
    },
    "g": {
        "g = 1": _is("g", lambda each: each == 1),
        "g IS NULL": _is_null("g"),
        "g != 2": _is("g", lambda each: each != 2),
        "g IS NOT NULL": _is("g", lambda _: True),
    },
    "x": {
        "x > 10.0": _is("x", lambda each: each > 10),
        "x IS NULL": _is_null("x"),
        "x = 5.0": _is("x", lambda each: each == 5),
        "x IS NOT NULL AND x < 10.0": _is("x", lambda each: each < 10),
    },
    "s": {
        "s = 's3'": _is("s", lambda each: each == "s3"),
        "s IS NULL": _is_null("s"),
        "s IN ('s1', 's2')": _is("s", lambda each: each in ("s1", "s2")),
    },
    "name": {
        "contains(name, 'nan')": _is("name", lambda each: "nan" in each),
        "contains(name, 'err')": _is("name", lambda each: "err" in each),
    },
    "text": {},
    "tags": {
        "array_has_any(tags, ['fig', 'apple'])": _is("tags", {"fig", "apple"}.intersection),
        "array_has_all(tags, ['fig', 'elder'])": _is("tags", {"fig", "elder"}.issubset),
    },
    "place.city": {
        "place.city = 'fig'": lambda row: (row["place"] or {}).get("city") == "fig",
        "place.city IN ('elder', 'apple')": (
            lambda row: (row["place"] or {}).get("city") in ("elder", "apple")
        ),
    },
}


class IndexHistory(IndexedTable):
    """One table, its indices, and what happens to them.

    Args:
        folder: An empty folder.
        seed: Settles what is done.
    """

    def __init__(self, folder: str, seed: int) -> None:
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        stable, self.kinds, self.vector_kind = drawn(seed)
        self.other_names: set[int] = set()
        self.say(f"stable row ids: {stable}; indices {self.kinds}, {self.vector_kind}")
        super().__init__(str(Path(folder) / "t"), seed, stable_row_ids=stable)
        self.check()

    def say(self, what: str) -> None:
        self.counts[what.partition(":")[0]] += 1
        self.notes.append(what)

    # --- indices

    def index(self) -> None:
        for column in self.kinds:
            self.index_column(column)
        if self.vector_kind is not None:
            self.index_vectors()

    def index_column(self, column: str) -> None:
        self.theirs.create_scalar_index(column, self.kinds[column], name=name_of(column))
        self.counts[f"index {self.kinds[column]}"] += 1

    def index_vectors(self) -> None:
        kind = self.vector_kind
        assert kind is not None
        self.theirs.create_index(
            "v", kind, num_partitions=2, ivf_centroids=CENTROIDS, replace=True, **VECTORS[kind]
        )
        self.counts[f"index {kind}"] += 1

    def drop_and_index(self) -> None:
        """Let pylance drop an index and make one of another kind."""
        column = self.dice.choice(sorted(self.kinds))
        if name_of(column) in self.index_names:
            self.theirs.drop_index(name_of(column))
            self.check()
        self.kinds[column] = self.dice.choice(SCALARS[column])
        self.index_column(column)

    def index_anew(self) -> None:
        """Let pylance replace an index."""
        if self.vector_kind is not None and self.dice.random() < 0.3:
            self.index_vectors()
        else:
            self.index_column(self.dice.choice(sorted(self.kinds)))

    # --- ours

    def update_some(self) -> None:
        values = self.dice.choice(
            [{"g": "1"}, {"x": "x + 10.0"}, {"s": "'s3'"}, {"name": "text"}, {"g": "NULL"}]
        )
        self.ours.update(values, where=f"id % {self.dice.randint(2, 5)} = 1")

    def delete_all(self) -> None:
        self.ours.delete("true")

    def add_and_drop_column(self) -> None:
        self.ours.add_columns({"more": "id * 2"})
        self.check()
        self.ours.drop_columns(["more"])

    def rename_and_update_indices(self) -> None:
        """Bring indices up to date while a column has another name."""
        self.append()
        before = self.ours.version
        self.ours.alter_columns({"path": "g", "name": "h"})
        self.update_indices()
        now = self.ours.alter_columns({"path": "h", "name": "g"})
        self.other_names.update(range(before + 1, now.version))

    def update_indices(self) -> None:
        refused = set()
        try:
            self.ours.optimize_indices()
        except IndexBuildError as error:
            refused = {name for name in (NESTED, "v_idx") if f"{name}: " in str(error)}
            assert refused, error  # noqa: PT017  # most rounds raise nothing
        rows = self.theirs.to_table(["v"])
        num_vectors = len(rows) - rows["v"].null_count
        for each in self.ours.index_coverage():
            is_nested = each.name == NESTED
            is_too_small = each.name == "v_idx" and num_vectors < TRAINING_ROWS
            is_stale = each.rows_unindexed != 0
            assert not is_stale or is_nested or (is_too_small and not each.rows_indexed), each
            assert each.name not in refused or is_nested or not num_vectors, (each, refused)

    def update_indices_one(self) -> None:
        names = sorted({each.name for each in self.ours.index_coverage()} - {NESTED})
        if names:
            self.ours.optimize_indices(self.dice.choice(names))

    def optimize(self) -> None:
        names = sorted({each.name for each in self.ours.index_coverage()} - {NESTED})
        try:
            self.theirs.optimize.optimize_indices(index_names=names)
        except OSError as error:
            # pylance fails to add a part of rows without a vector. It merges them, as we ask it to.
            is_known = "/ivf_" in str(error) or "KMeans cannot train" in str(error)
            assert is_known, error  # noqa: PT017  # it mostly succeeds

    def any_version(self) -> int:
        versions = set(range(1, self.ours.version + 1)) - self.other_names
        return self.dice.choice(sorted(versions))

    def restore(self) -> None:
        self.ours.restore(self.any_version())

    def update_indices_during(self) -> None:
        act, who = self.choose()
        table = self.ours.table
        names = names_to_build(index_coverage(table), None)
        built = build(request_of(table, names), table.store) if names else None
        self.say(f"meanwhile {who} {act.__name__}")
        act(self)
        self.check()
        if built is None or built.transaction is None:
            return
        try:
            commit_built(table, built)
        except RetryableConflictError:
            self.say("the indices are to be made again")
        else:
            self.say("the indices are committed")

    # --- theirs

    def append_by_pylance(self) -> None:
        lance.write_dataset(self.rows(self.new_keys(6)), self.uri, mode="append")

    def delete_by_pylance(self) -> None:
        self.theirs.delete(f"id % {self.dice.randint(3, 7)} = 0")

    def update_by_pylance(self) -> None:
        values = self.dice.choice([{"g": "1"}, {"x": "x + 10.0"}, {"s": "'s3'"}])
        self.theirs.update(values, where=f"id % {self.dice.randint(2, 5)} = 1")

    def restore_by_pylance(self) -> None:
        lance.dataset(self.uri, version=self.any_version()).restore()

    # --- the law

    def choose(self) -> tuple[Callable[["IndexHistory"], None], str]:
        who = "we" if self.dice.random() < 0.65 else "they"
        acts = OURS if who == "we" else THEIRS
        return self.dice.choices(list(acts), list(acts.values()))[0], who

    def step(self) -> None:
        if self.dice.random() < 0.3:
            act, who = self.dice.choice(FRESHENING), "we"
        else:
            act, who = self.choose()
        is_in_place = self.dice.random() < 0.3
        self.say(f"{who} {act.__name__}" + (": in place" if is_in_place else ""))
        if is_in_place:
            with patch.object(FragmentCosts, "is_cheaper_in_place", property(lambda _: True)):
                act(self)
        else:
            act(self)
        self.check()

    def finish(self) -> None:
        self.update_indices()
        self.check()
        assert self.ours.verify() == []
        for _ in range(3):
            self.check(self.any_version())

    def check(self, version: int | None = None) -> None:
        ds = lance.dataset(self.uri, version=version)
        rows = ds.to_table().to_pylist()
        there = {describe_index.name for describe_index in ds.describe_indices()}
        for column in self.kinds:
            for condition, holds in QUESTIONS[column].items():
                expected = sorted(row["id"] for row in rows if holds(row))
                found = sorted(ds.to_table(["id"], filter=condition)["id"].to_pylist())
                assert found == expected, (ds.version, condition, found, expected)
                self.counts["questions"] += 1
                if column in ANSWERED_BY_US:
                    self.check_ours(ds.version, condition, expected)
        if "text" in self.kinds and name_of("text") in there:
            for word in WORDS[:2]:
                expected = sorted(row["id"] for row in rows if word in (row["text"] or "").split())
                texts = ds.to_table(["id"], full_text_query=word)["id"].to_pylist()
                assert sorted(texts) == expected, (ds.version, word, sorted(texts), expected)
                self.counts["questions"] += 1
        if self.vector_kind is not None:
            self.check_nearest(ds, rows)
        self.counts["versions"] += 1

    def check_ours(self, version: int, condition: str, expected: list[int]) -> None:
        ours = lance_stream.open_dataset(self.uri, version=version)
        with eager_indices() as counts:
            found = sorted(ours.to_table(["id"], filter=condition)["id"].to_pylist())
        assert found == expected, (version, condition, found, expected)
        self.counts["filters served by us"] += counts["served"]

    def check_nearest(self, ds: Any, rows: list[Row]) -> None:
        vectors = [row["v"] for row in rows if row["v"] is not None]
        wanted = np.array([self.dice.randint(0, 9) for _ in range(8)], np.float32)
        nearest = {"column": "v", "q": wanted, "k": NUM_NEIGHBOURS, "nprobes": 100}
        nearest |= {"refine_factor": MANY // NUM_NEIGHBOURS, "ef": MANY}
        found = ds.to_table(["id", "v", "_distance"], nearest=nearest)
        distances = np.sort(((np.array(vectors or CENTROIDS[:0]) - wanted) ** 2).sum(axis=1))
        told = np.sort(found["_distance"].to_numpy())
        assert np.allclose(told, distances[:NUM_NEIGHBOURS]), (ds.version, told, distances[:9])
        assert len(set(found["id"].to_pylist())) == len(found), (ds.version, found["id"])
        by_id = {row["id"]: row["v"] for row in rows}
        assert all(by_id[row["id"]] == row["v"] for row in found.to_pylist())
        self.counts["questions"] += 1


def name_of(column: str) -> str:
    """Return the name of the index on a column."""
    return f"{column.replace('.', '_')}_idx"


OURS: Final[dict[Callable[[IndexHistory], None], int]] = {
    IndexHistory.append: 3,
    IndexHistory.delete: 2,
    IndexHistory.delete_first: 1,
    IndexHistory.update_some: 4,
    IndexHistory.upsert: 5,
    IndexHistory.upsert_some_columns: 5,
    IndexHistory.upsert_and_delete: 3,
    IndexHistory.compact: 4,
    IndexHistory.overwrite: 1,
    IndexHistory.restore: 1,
    IndexHistory.add_and_drop_column: 1,
    IndexHistory.delete_all: 1,
    IndexHistory.rename_and_update_indices: 1,
}
THEIRS: Final[dict[Callable[[IndexHistory], None], int]] = {
    IndexHistory.append_by_pylance: 3,
    IndexHistory.delete_by_pylance: 2,
    IndexHistory.update_by_pylance: 3,
    IndexHistory.merge: 4,
    IndexHistory.compact_by_pylance: 2,
    IndexHistory.restore_by_pylance: 1,
    IndexHistory.optimize: 2,
    IndexHistory.drop_and_index: 2,
    IndexHistory.index_anew: 1,
}
FRESHENING: Final = (
    IndexHistory.update_indices,
    IndexHistory.update_indices_one,
    IndexHistory.update_indices_during,
)


def drawn(seed: int) -> tuple[bool, dict[str, str], str | None]:
    """Return whether a history's table has stable row ids, and which indices it has."""
    dice = random.Random(seed)
    stable = dice.random() < 0.5
    columns = dice.sample(sorted(SCALARS), 3)
    kinds = {column: dice.choice(SCALARS[column]) for column in columns}
    return stable, kinds, dice.choice(sorted(VECTORS)) if dice.random() < 0.7 else None


def play(seed: int, steps: int) -> Counter[str]:
    """Play a history, and return what happened how often.

    Raises:
        AssertionError: A law does not hold; the notes say what happened.
    """
    return histories.run(IndexHistory, seed, steps).counts


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=8))
