"""Random histories of tables whose filters are served by indices of pylance, changed by both.

    python -m tests.oracle.filter_histories --minutes 10 --seed 1

Each history has a table of many types, with stable row ids or without, with nulls, NaN of both
signs, -0.0 and infinities, and a BTREE of small pages or a BITMAP on each column. Both writers
append, delete, update, upsert all columns or some, compact and restore, fragments may be changed in
place, and indices are brought up to date by adding segments or by merging them. After each step,
and at the end in all versions, random filters are evaluated by us

    with indices        whatever they save
    without             all rows are scanned
    by pylance          where it knows the filter, on a scan

and choose the same rows, in the same order.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import lance
import pyarrow as pa
from lance.indices import IndexConfig

import lance_stream
from lance_stream import InvalidInputError
from lance_stream.read.scan import check_filter
from lance_stream.upsert.in_place_costs import FragmentCosts
from tests import seeded_runs as histories
from tests.eager_indices import eager_indices, no_indices

NAN: Final = float("nan")
EPOCH: Final = datetime(2024, 1, 1)
STRINGS: Final = ["", "a", "ab", "b", "zebra", "ü", "𝄞", "B", "a" * 40]

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("big", pa.uint64()),
        pa.field("f", pa.float64()),
        pa.field("f32", pa.float32()),
        pa.field("s", pa.string()),
        pa.field("ls", pa.large_string()),
        pa.field("bin", pa.binary()),
        pa.field("yes", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("ms", "UTC")),
        pa.field("dec", pa.decimal128(12, 2)),
        pa.field("part", pa.struct([pa.field("n", pa.int64()), pa.field("t", pa.string())])),
    ]
)
FLOATS: Final = [NAN, -NAN, 0.0, -0.0, float("inf"), -float("inf"), 1.5, -2.25, 3.0, 1e300]
OTHER_MEANING: Final = ("f ", " f", "f32", "part.")
"""In pylance a NaN with a sign is less than all numbers, a float is compared with 0.1 as a float,
and a part of a null struct is not always null."""

INDEXED: Final = (*(name for name in SCHEMA.names if name != "part"), "part.n", "part.t")
TEXTS: Final[dict[str, Callable[[random.Random], str]]] = {
    "id": lambda dice: str(dice.randint(-2, 70)),
    "small": lambda dice: dice.choice(["-128", "127", "0", "5", "1000", "2.5", "1e1"]),
    "big": lambda dice: dice.choice(["0", "18446744073709551615", "9223372036854775808", "-1"]),
    "f": lambda dice: dice.choice(["0", "-0.0", "1.5", "3", "1e300", "CAST('NaN' AS double)"]),
    "f32": lambda dice: dice.choice(["0", "0.1", "1.5", "-2.25", "CAST('NaN' AS double)"]),
    "s": lambda dice: "'" + dice.choice(STRINGS) + "'",
    "ls": lambda dice: "'" + dice.choice(STRINGS) + "'",
    "bin": lambda dice: dice.choice(["X''", "X'00'", "X'ff'", "X'6162'"]),
    "yes": lambda dice: dice.choice(["TRUE", "FALSE"]),
    "day": lambda dice: dice.choice(["DATE '2024-01-03'", "'2024-01-05'", "DATE '1969-12-30'"]),
    "at": lambda dice: dice.choice(["TIMESTAMP '2024-01-02 00:00:00'", "'2024-01-04'"]),
    "zoned": lambda dice: dice.choice(["TIMESTAMP '2024-01-02 00:00:00+00:00'"]),
    "dec": lambda dice: dice.choice(["1.25", "0", "-7", "99.99", "1.255"]),
    "part.n": lambda dice: str(dice.randint(0, 6)),
    "part.t": lambda dice: "'" + dice.choice(STRINGS) + "'",
}


class FilterHistory:
    """One table, its indices, and what happens to them.

    Args:
        folder: An empty folder.
        seed: Settles what is done.
    """

    def __init__(self, folder: str, seed: int) -> None:
        self.dice = random.Random(seed)
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self.uri = str(Path(folder) / "t")
        self.next_key = 60
        stable = self.dice.random() < 0.5
        self.say(f"stable row ids: {stable}")
        lance.write_dataset(
            self.rows(range(60)), self.uri, max_rows_per_file=25, enable_stable_row_ids=stable
        )
        for column in self.dice.sample(INDEXED, 9):
            self.index(column)
        self.check()

    def say(self, what: str) -> None:
        self.counts[what.partition(":")[0]] += 1
        self.notes.append(what)

    @property
    def ours(self) -> Any:
        return lance_stream.open_dataset(self.uri)

    @property
    def theirs(self) -> Any:
        return lance.dataset(self.uri)

    # --- rows

    def rows(self, keys: Any) -> pa.Table:
        values = [self.row(key) for key in keys]
        return pa.Table.from_pylist(values, SCHEMA)

    def row(self, key: int) -> dict[str, Any]:
        dice = self.dice

        def some(value: Any) -> Any:
            return None if dice.random() < 0.2 else value

        return {
            "id": key,
            "small": some(dice.choice([-128, 127, 0, 5, 7])),
            "big": some(dice.choice([0, 1, 2**63, 2**64 - 1])),
            "f": some(dice.choice(FLOATS)),
            "f32": some(dice.choice([*FLOATS[:-1], 0.1])),
            "s": some(dice.choice(STRINGS)),
            "ls": some(dice.choice(STRINGS)),
            "bin": some(dice.choice([b"", b"\0", b"\xff", b"ab"])),
            "yes": some(dice.random() < 0.5),
            "day": some(date(1970, 1, 1) + timedelta(dice.choice([-2, 0, 19725, 19727]))),
            "at": some(EPOCH + timedelta(days=dice.randint(0, 5), microseconds=dice.randint(0, 1))),
            "zoned": some((EPOCH + timedelta(days=dice.randint(0, 3))).replace(tzinfo=UTC)),
            "dec": some(Decimal(dice.choice(["1.25", "-7.00", "99.99", "0.00"]))),
            "part": some({"n": some(dice.randint(0, 6)), "t": some(dice.choice(STRINGS))}),
        }

    def new_keys(self, num: int) -> range:
        self.next_key += num
        return range(self.next_key - num, self.next_key)

    def known_keys(self, num: int) -> list[int]:
        return self.dice.sample(range(self.next_key), num)

    # --- indices

    def index(self, column: str) -> None:
        if self.dice.random() < 0.6:
            kind: Any = IndexConfig("btree", {"zone_size": self.dice.choice([3, 8, 50])})
        else:
            kind = "BITMAP"
        self.say(f"index: {column} {kind}")
        self.theirs.create_scalar_index(column, kind, name=f"{column}_idx", replace=True)

    def index_anew(self) -> None:
        self.index(self.dice.choice(INDEXED))

    def add_segments(self) -> None:
        self.theirs.optimize.optimize_indices(num_indices_to_merge=0)

    def merge_segments(self) -> None:
        self.theirs.optimize.optimize_indices(num_indices_to_merge=self.dice.choice([1, 5]))

    def update_indices(self) -> None:
        self.ours.optimize_indices()

    # --- ours

    def append(self) -> None:
        self.ours.append(self.rows(self.new_keys(9)))

    def delete(self) -> None:
        self.ours.delete(self.condition(1))

    def update(self) -> None:
        values = self.dice.choice(
            [{"small": "7"}, {"s": "NULL"}, {"f": "0.0"}, {"yes": "NOT yes"}, {"dec": "dec"}]
        )
        self.ours.update(values, where=f"id % {self.dice.randint(2, 5)} = 1")

    def upsert(self) -> None:
        self.ours.upsert(self.rows([*self.known_keys(6), *self.new_keys(3)]), on=["id"])

    def upsert_some_columns(self) -> None:
        names = ["id", *self.dice.sample(SCHEMA.names[1:], 3)]
        self.ours.upsert(self.rows(self.known_keys(6)).select(names), on=["id"])

    def compact(self) -> None:
        self.ours.compact(self.dice.choice([30, 1000]))

    def restore(self) -> None:
        self.ours.restore(self.dice.randint(1, self.ours.version))

    # --- theirs

    def append_by_pylance(self) -> None:
        lance.write_dataset(self.rows(self.new_keys(9)), self.uri, mode="append")

    def delete_by_pylance(self) -> None:
        self.theirs.delete(f"id % {self.dice.randint(3, 7)} = 0")

    def update_by_pylance(self) -> None:
        values = self.dice.choice([{"small": "7"}, {"s": "'b'"}, {"f": "0.0"}])
        self.theirs.update(values, where=f"id % {self.dice.randint(2, 5)} = 1")

    def merge(self) -> None:
        rows = self.rows([*self.known_keys(6), *self.new_keys(3)])
        merge = self.theirs.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(rows)

    def merge_some_columns(self) -> None:
        names = ["id", *self.dice.sample(["small", "f", "s", "dec", "day"], 2)]
        merge = self.theirs.merge_insert("id").when_matched_update_all()
        merge.execute(self.rows(self.known_keys(6)).select(names))

    def compact_by_pylance(self) -> None:
        self.theirs.optimize.compact_files(
            target_rows_per_fragment=self.dice.choice([30, 1000]),
            defer_index_remap=not self.ours.has_stable_row_ids and self.dice.random() < 0.5,
        )

    # --- the law

    def step(self) -> None:
        act = self.dice.choices(list(ACTS), list(ACTS.values()))[0]
        is_in_place = self.dice.random() < 0.3
        self.say(act.__name__ + (": in place" if is_in_place else ""))
        always = patch.object(FragmentCosts, "is_cheaper_in_place", property(lambda _: True))
        try:
            with always if is_in_place else nullcontext():
                act(self)
        except (OSError, lance_stream.LanceStreamError) as error:
            self.say(f"refused: {type(error).__name__} {str(error)[:200]}")
        self.check()

    def finish(self) -> None:
        for version in range(1, self.ours.version + 1):
            self.check(version, 3)

    def check(self, version: int | None = None, num: int = 12) -> None:
        ours = lance_stream.open_dataset(self.uri, version=version)
        theirs = lance.dataset(self.uri, version=ours.version)
        for _ in range(num):
            condition = self.condition(self.dice.choice([1, 1, 2, 3]))
            with no_indices():
                expected = ours.to_table(["id"], filter=condition)["id"].to_pylist()
            with eager_indices() as counts:
                found = ours.to_table(["id"], filter=condition)["id"].to_pylist()
                num_found = ours.count_rows(condition)
            assert found == expected, (ours.version, condition, found, expected)
            assert num_found == len(expected), (ours.version, condition)
            self.counts.update(counts)
            self.counts["rows"] += len(found)
            self.counts["asked of pylance"] += self.agrees(theirs, condition, expected)

    def agrees(self, theirs: Any, condition: str, expected: list[int]) -> bool:
        """Check that pylance's scan gives the same, unless it takes the condition differently."""
        if any(each in condition for each in OTHER_MEANING):
            return False
        try:
            found = theirs.scanner(["id"], filter=condition, use_scalar_index=False).to_table()
        except (OSError, ValueError):
            return False
        assert found["id"].to_pylist() == expected, (theirs.version, condition)
        return True

    def condition(self, num_parts: int) -> str:
        """Return a random condition on the columns."""
        while True:
            parts = [self.part() for _ in range(num_parts)]
            text = parts[0]
            for part in parts[1:]:
                text = f"({text}) {self.dice.choice(['AND', 'AND', 'OR'])} ({part})"
            try:
                check_filter(self.ours.table, text)
            except InvalidInputError:
                continue
            return text

    def part(self) -> str:
        column = self.dice.choice(INDEXED)

        def value() -> str:
            return TEXTS[column](self.dice)

        number = self.dice.randint(0, 11)
        if number < 4:
            return f"{column} {self.dice.choice(['<', '<=', '>', '>=', '=', '=', '!='])} {value()}"
        if number < 6:
            low, high = value(), value()
            return f"{column} >= {low} AND {column} < {high}"
        if number == 6:
            return f"{column} BETWEEN {value()} AND {value()}"
        if number == 7:
            listed = [value() for _ in range(self.dice.choice([1, 3, 20]))]
            return f"{column} IN ({', '.join(listed)})"
        if number == 8:
            return f"{column} IS {self.dice.choice(['', 'NOT '])}NULL"
        if number == 9:
            return f"NOT ({column} {self.dice.choice(['<', '='])} {value()})"
        if number == 10:
            return f"{value()} {self.dice.choice(['<', '>='])} {column}"
        return self.dice.choice(
            ["s LIKE 'a%'", "yes", "NOT yes", "id % 2 = 0", "id = small", "id + 1 = 5"]
        )


ACTS: Final[dict[Callable[[FilterHistory], None], int]] = {
    FilterHistory.append: 2,
    FilterHistory.delete: 2,
    FilterHistory.update: 3,
    FilterHistory.upsert: 3,
    FilterHistory.upsert_some_columns: 3,
    FilterHistory.compact: 2,
    FilterHistory.restore: 1,
    FilterHistory.append_by_pylance: 2,
    FilterHistory.delete_by_pylance: 2,
    FilterHistory.update_by_pylance: 3,
    FilterHistory.merge: 3,
    FilterHistory.merge_some_columns: 3,
    FilterHistory.compact_by_pylance: 2,
    FilterHistory.index_anew: 2,
    FilterHistory.add_segments: 4,
    FilterHistory.merge_segments: 3,
    FilterHistory.update_indices: 3,
}


def play(seed: int, steps: int) -> Counter[str]:
    """Play a history, and return what happened how often.

    Raises:
        AssertionError: A law does not hold; the notes say what happened.
    """
    return histories.run(FilterHistory, seed, steps).counts


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=10))
