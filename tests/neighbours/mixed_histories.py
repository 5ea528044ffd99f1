"""Random histories of a table that lance-stream, pylance, LanceDB and DuckDB write in turn.

    python -m tests.neighbours.mixed_histories --minutes 10 --seed 1

Each history has a table with stable row ids, created by one of the writers. Over it LanceDB has
three materialized views and, in some histories, a computed column. In each step one writer appends,
upserts, updates, deletes, compacts, adds or drops a column, builds or freshens an index, restores
or replaces rows, removes old versions, compacts while another writes, or appends from a handle that
is behind. Half of our updates are in place, whatever that costs. After each step

    a view             is refreshed by LanceDB, and equals its query over the model

and now and then, and at the end,

    five readers       (the four, and polars) read the rows of the model, all and by a filter
    the computed       column is refused in rows by LanceDB and by us; refreshed by LanceDB, it has
                       the value of its expression in each row
    the change feed    turns a replica of an older version into the rows of the model
    verify             finds nothing

Needs `lancedb`, `polars`, `duckdb` and DuckDB's extension for Lance: the extra `recipes`.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.maintenance.compaction.compact import commit_prepared
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import prepare
from lance_stream.row_updates.in_place_costs import FragmentCosts
from tests import seeded_runs
from tests.recipes import need

Row = dict[str, Any]

SCHEMA: Final = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("g", pa.string())])
VIEWS: Final[dict[str, tuple[dict[str, Any], Callable[[Row], tuple[Any, ...] | None]]]] = {
    "whole": ({}, lambda row: (row["id"], row["x"], row["g"])),
    "large": (
        {"select": ["id", "x"], "where": "x >= 50"},
        lambda row: (row["id"], row["x"]) if row["x"] >= 50 else None,
    ),
    "shout": (
        {"select": ["id", ("loud", "upper(g)")]},
        lambda row: (row["id"], None if row["g"] is None else row["g"].upper()),
    ),
}
"""Per view: its definition, and the row that it has for one of the table; None if it has none."""

MAX_VERSIONS: Final = 3


class MixedHistory:
    """One table, its views, and a model of its rows."""

    def __init__(self, folder: str, seed: int) -> None:
        self.dice = random.Random(seed)
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self.lancedb: Any = need("lancedb")
        self.polars: Any = need("polars")
        duckdb: Any = need("duckdb")
        extensions: Any = need("duckdb_extensions")
        self.uri = str(Path(folder) / "tables" / "t.lance")
        self.database = self.lancedb.connect(
            str(Path(folder) / "tables"),
            read_consistency_interval=timedelta(0),
            storage_options={"new_table_enable_stable_row_ids": "true"},
        )
        extensions.import_extension("lance")
        self.duckdb = duckdb.connect()
        self.duckdb.execute("LOAD lance")
        self.folder, self.links = Path(folder) / "tables", 0
        self.next_id = 0
        self.extra: str | None = None
        self.model: dict[int, Row] = {}
        self.versions: dict[int, tuple[dict[int, Row], str | None]] = {}
        self.create()
        for name, (definition, _) in VIEWS.items():
            self.database.create_materialized_view(name, "t", **definition)
        self.has_computed = self.dice.random() < 0.4
        if self.has_computed:
            self.table.add_columns(computed={"twice": "x * 2"})
        self.record_version()
        self.first = self.ours.version

    # The handles of the four writers, at the newest version.

    @property
    def ours(self) -> Dataset:
        return lance_stream.open_dataset(self.uri)

    @property
    def theirs(self) -> lance.LanceDataset:
        return lance.dataset(self.uri)

    @property
    def table(self) -> Any:
        return self.database.open_table("t")

    def sql(self, query: str) -> Any:
        """Let DuckDB execute a query about the table `t` at its newest version.

        A session of DuckDB sees the version that it saw first, of each path. So each query has a
        path of its own.
        """
        self.links += 1
        link = self.folder.with_name(f"link{self.links}")
        link.symlink_to(self.folder, target_is_directory=True)
        self.duckdb.execute(f"ATTACH '{link}' AS ns{self.links} (TYPE LANCE)")
        result = self.duckdb.execute(
            query.replace("{t}", f"ns{self.links}.main.t")
        ).to_arrow_table()
        self.duckdb.execute(f"DETACH ns{self.links}")
        return result

    # Rows and keys.

    def new_rows(self) -> list[Row]:
        count = self.dice.choice([1, 2, 5, 20])
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        return [self.row(row_id) for row_id in ids]

    def row(self, row_id: int) -> Row:
        g = self.dice.choice([None, "a", "b", "ü'"])
        return {"id": row_id, "x": self.dice.randrange(100), "g": g}

    def changed_rows(self) -> list[Row]:
        return [self.row(row_id) for row_id in self.some_ids()]

    def some_ids(self) -> list[int]:
        whole = self.dice.random() < 0.1
        count = len(self.model) if whole else min(len(self.model), self.dice.choice([1, 2, 5, 10]))
        return self.dice.sample(sorted(self.model), count)

    def condition(self) -> tuple[str, Callable[[Row], bool]]:
        """Return a condition in SQL that all writers read alike, and the same in Python."""
        bound, half = self.dice.randrange(100), self.dice.randrange(max(1, self.next_id))
        return self.dice.choice(
            [
                (f"x < {bound}", lambda row: row["x"] < bound),
                (
                    f"id >= {half} AND x >= {bound}",
                    lambda row: row["id"] >= half and row["x"] >= bound,
                ),
                ("g IS NULL", lambda row: row["g"] is None),
                (f"g = 'a' OR id = {half}", lambda row: row["g"] == "a" or row["id"] == half),
            ]
        )

    def update_model(self, rows: Sequence[Row], *, columns: Sequence[str] = SCHEMA.names) -> None:
        for row in rows:
            old = self.model.get(row["id"], {"id": row["id"], "x": None, "g": None, "extra": None})
            self.model[row["id"]] = {**old, **{name: row[name] for name in columns}}

    def record_version(self) -> None:
        self.versions[self.ours.version] = (
            {key: dict(row) for key, row in self.model.items()},
            self.extra,
        )

    # What a step does.

    def create(self) -> None:
        rows = self.new_rows() + self.new_rows()
        table = pa.Table.from_pylist(rows, SCHEMA)
        writer = self.dice.choice(["ours", "pylance", "lancedb"])
        self.notes.append(f"{writer} creates {len(rows)} rows")
        version = self.dice.choice(["2.0", "2.1", "2.2"])
        if writer == "ours":
            lance_stream.create_dataset(self.uri, table, file_version=version)
        elif writer == "pylance":
            lance.write_dataset(
                table, self.uri, enable_stable_row_ids=True, data_storage_version=version
            )
        else:
            self.database.create_table("t", table)
        self.update_model(rows)

    def append(self) -> None:
        rows = self.new_rows()
        table = pa.Table.from_pylist(rows, SCHEMA)
        writers: dict[str, Callable[[], Any]] = {
            "ours": lambda: self.ours.append(table),
            "ours from polars": lambda: self.ours.append(self.polars.from_arrow(table)),
            "pylance": lambda: self.theirs.insert(table),
            "lancedb": lambda: self.table.add(table),
            "duckdb": lambda: self.insert_by_sql(table),
        }
        self.run_one_writer(writers)
        self.update_model(rows)

    def insert_by_sql(self, table: pa.Table) -> None:
        self.duckdb.register("rows", table)
        names = ", ".join(self.ours.schema.names)
        missing = [f"NULL AS {name}" for name in self.ours.schema.names if name not in SCHEMA.names]
        every = ", ".join(["*", *missing])
        self.sql(f"INSERT INTO {{t}} SELECT {names} FROM (SELECT {every} FROM rows)")
        self.duckdb.unregister("rows")

    def upsert(self) -> None:
        rows = self.changed_rows() + (self.new_rows() if self.dice.random() < 0.5 else [])
        self.dice.shuffle(rows)
        if not rows:
            return
        table = pa.Table.from_pylist(rows, SCHEMA)

        def merge(builder: Any) -> Any:
            builder = builder.when_matched_update_all().when_not_matched_insert_all()
            return builder.execute(table)

        self.run_one_writer(
            {
                "ours": lambda: self.ours.upsert(table, on="id"),
                "pylance": lambda: merge(self.theirs.merge_insert("id")),
                "lancedb": lambda: merge(self.table.merge_insert("id")),
            }
        )
        self.update_model(rows)

    def upsert_some_columns(self) -> None:
        rows = self.changed_rows()
        if not rows:
            return
        table = pa.Table.from_pylist(rows, SCHEMA).select(["id", "x"])
        self.run_one_writer(
            {
                "ours": lambda: self.ours.upsert(table, on="id"),
                "pylance": lambda: (
                    self.theirs.merge_insert("id").when_matched_update_all().execute(table)
                ),
                "lancedb": lambda: (
                    self.table.merge_insert("id").when_matched_update_all().execute(table)
                ),
            }
        )
        self.update_model(rows, columns=["id", "x"])

    def update(self) -> None:
        where, holds = self.condition()
        amount = self.dice.choice([0, 1, 7])
        value = f"x + {amount}"
        self.run_one_writer(
            {
                "ours": lambda: self.ours.update({"x": value}, where=where),
                "pylance": lambda: self.theirs.update({"x": value}, where=where),
                "lancedb": lambda: self.table.update(where=where, values_sql={"x": value}),
                "duckdb": lambda: self.sql(f"UPDATE {{t}} SET x = {value} WHERE {where}"),
            }
        )
        for row in self.model.values():
            if holds(row):
                row["x"] += amount

    def delete(self) -> None:
        """Not by DuckDB, whose extension 1.5.5 deletes all rows for `x < 5` (of any writer's)."""
        where, holds = self.dice.choice([self.condition(), self.condition_on_ids()])
        self.run_one_writer(
            {
                "ours": lambda: self.ours.delete(where),
                "pylance": lambda: self.theirs.delete(where),
                "lancedb": lambda: self.table.delete(where),
            }
        )
        self.model = {key: row for key, row in self.model.items() if not holds(row)}

    def condition_on_ids(self) -> tuple[str, Callable[[Row], bool]]:
        ids = self.some_ids() or [0]
        return f"id IN ({', '.join(map(str, ids))})", lambda row: row["id"] in ids

    def compact(self) -> None:
        self.run_one_writer(
            {
                "ours": lambda: self.ours.compact(),
                "ours in two": lambda: self.ours.compact(target_rows=25),
                "pylance": lambda: self.theirs.optimize.compact_files(),
                "lancedb": lambda: self.table.optimize(),
                "duckdb": lambda: self.sql("OPTIMIZE {t}"),
            }
        )

    def compact_meanwhile(self) -> None:
        """We compact, and others write between the rewrite and the commit."""
        prepared = prepare(self.ours.table, CompactionRules(1 << 20))
        self.notes.append("ours compacts; meanwhile")
        for _ in range(self.dice.choice([1, 2])):
            self.dice.choice([self.append, self.delete, self.upsert, self.update])()
        commit_prepared(prepared)

    def append_behind(self) -> None:
        """A handle that was opened before other commits appends."""
        ours, theirs = self.ours, self.theirs
        for _ in range(self.dice.choice([1, 2])):
            self.dice.choice([self.compact, self.delete, self.upsert, self.update])()
        rows = self.new_rows()
        table = pa.Table.from_pylist(rows, SCHEMA)
        self.run_one_writer(
            {
                "ours": lambda: ours.append(table),
                "pylance": lambda: theirs.insert(table),
            }
        )
        self.update_model(rows)

    def change_columns(self) -> None:
        if self.extra is None:
            self.extra = "extra"
            field = pa.field("extra", pa.int64())
            self.run_one_writer(
                {
                    "ours": lambda: self.ours.add_columns(field),
                    "ours with values": lambda: self.ours.add_columns({"extra": "id"}),
                    "pylance": lambda: self.theirs.add_columns(field),
                    "lancedb": lambda: self.table.add_columns({"extra": "id"}),
                }
            )
            has_values = "with values" in self.notes[-1] or "lancedb" in self.notes[-1]
            for row in self.model.values():
                row["extra"] = row["id"] if has_values else None
            return
        self.run_one_writer(
            {
                "ours": lambda: self.ours.drop_columns("extra"),
                "pylance": lambda: self.theirs.drop_columns(["extra"]),
                "lancedb": lambda: self.table.drop_columns(["extra"]),
            }
        )
        self.extra = None

    def index(self) -> None:
        column, kind = self.dice.choice([("id", "BTREE"), ("x", "BTREE"), ("g", "BITMAP")])
        self.run_one_writer(
            {
                "pylance": lambda: self.theirs.create_scalar_index(column, kind, replace=True),
                "lancedb": lambda: self.table.create_scalar_index(
                    column, index_type=kind, replace=True
                ),
                "ours freshens": lambda: self.ours.optimize_indices(),
                "pylance freshens": lambda: self.theirs.optimize.optimize_indices(),
            }
        )

    def restore(self) -> None:
        versions = [version for version in self.versions if version in self.our_versions()]
        if not versions:
            return
        version = self.dice.choice(versions)
        self.run_one_writer(
            {
                "ours": lambda: self.ours.restore(version),
                "pylance": lambda: lance.dataset(self.uri, version=version).restore(),
                "lancedb": lambda: self.table.restore(version),
            }
        )
        model, self.extra = self.versions[version]
        self.model = {key: dict(row) for key, row in model.items()}

    def our_versions(self) -> set[int]:
        return {info.version for info in self.ours.versions()}

    def overwrite(self) -> None:
        if self.has_computed:  # the declaration would be gone
            return
        rows = self.new_rows()
        table = pa.Table.from_pylist(rows, SCHEMA)
        self.run_one_writer(
            {
                "ours": lambda: self.ours.overwrite(table),
                "pylance": lambda: lance.write_dataset(table, self.uri, mode="overwrite"),
                "lancedb": lambda: self.table.add(table, mode="overwrite"),
            }
        )
        self.model, self.extra = {}, None
        self.update_model(rows)

    def clean_up(self) -> None:
        """Remove versions that a view may need: LanceDB then computes it anew."""
        keep = self.dice.randint(1, MAX_VERSIONS)
        self.run_one_writer(
            {
                "ours": lambda: self.ours.cleanup(retain_versions=keep),
                "pylance": lambda: self.theirs.cleanup_old_versions(retain_versions=keep),
            }
        )

    def configure(self) -> None:
        self.run_one_writer(
            {
                "ours": lambda: self.ours.update_config({"a": str(self.dice.random())}),
                "ours, metadata": lambda: self.ours.update_metadata(fields={"x": {"a": "b"}}),
                "pylance": lambda: self.theirs.update_config({"b": str(self.dice.random())}),
            }
        )

    def run_one_writer(self, writers: dict[str, Callable[[], Any]]) -> None:
        """Run one of the writers, chosen at random; our own more often."""
        ours = [name for name in writers if name.startswith("ours")]
        names = ours if ours and self.dice.random() < 0.4 else list(writers)
        name = self.dice.choice(names)
        caller = sys._getframe(1).f_code.co_name
        self.notes.append(f"{name}: {caller}")
        self.counts[f"{name}: {caller}"] += 1
        if self.dice.random() < 0.5:
            with patch.object(FragmentCosts, "is_cheaper_in_place", property(lambda _: True)):
                writers[name]()
        else:
            writers[name]()

    # What holds after it.

    def step(self) -> None:
        act = self.dice.choices(list(ACTS), list(ACTS.values()))[0]
        act(self)
        self.record_version()
        self.notes.append(f"    version {self.ours.version}, {len(self.model)} rows")
        for name in VIEWS:
            if self.dice.random() < 0.4:
                self.refresh(name, full=False)
        if self.dice.random() < 0.2:
            self.read()
        if self.has_computed and self.dice.random() < 0.2:
            self.refresh_computed()

    def refresh(self, name: str, *, full: bool) -> None:
        view = self.database.open_materialized_view(name)
        result = view.refresh(full=full)
        self.notes.append(f"    view {name}: {result.mode}, {result.rows_written} written")
        self.counts[f"view: {result.mode}"] += 1
        rows_of = VIEWS[name][1]
        view_rows = map(rows_of, self.model.values())
        expected = [row for row in view_rows if row is not None]
        columns = [name for name in view.table.schema.names if not name.startswith("__")]
        rows = view.table.to_arrow().select(columns[: len(expected[0]) if expected else None])
        actual = [tuple(row.values()) for row in rows.to_pylist()]
        check_same(actual, expected, f"view {name}, {result.mode}")

    def refresh_computed(self) -> None:
        rows = pa.table({"id": [self.next_id], "x": [1], "g": ["a"], "twice": [1]})
        for write in (self.table.add, self.ours.append):
            with pytest.raises(ValueError, match="comput"):
                write(rows)
        self.table.refresh_column("twice")
        self.notes.append("    computed column")
        self.counts["computed column"] += 1
        rows = self.ours.to_table(columns=["id", "x", "twice"]).to_pylist()
        assert [row for row in rows if row["twice"] != 2 * row["x"]] == []
        self.record_version()

    def read(self) -> None:
        where, holds = self.condition()
        columns = [*SCHEMA.names, *([self.extra] if self.extra else [])]
        names = ", ".join(columns)
        readers: dict[str, Callable[[str | None], Any]] = {
            "ours": lambda sql: self.ours.to_table(columns=columns, filter=sql).to_pylist(),
            "pylance": lambda sql: self.theirs.to_table(columns=columns, filter=sql).to_pylist(),
            "lancedb": lambda sql: self.search(columns, sql),
            "duckdb": lambda sql: self.sql(
                f"SELECT {names} FROM {{t}} WHERE {sql or 'true'}"
            ).to_pylist(),
            "polars": lambda sql: self.scan_by_polars(columns, sql),
        }
        for name, reader in readers.items():
            for sql in (None, where):
                rows = [row for row in self.model.values() if sql is None or holds(row)]
                expected = [{column: row[column] for column in columns} for row in rows]
                check_same(reader(sql), expected, f"{name} reads {sql or 'all'}")
            self.counts[f"read by {name}"] += 1

    def search(self, columns: list[str], where: str | None) -> list[Row]:
        query = self.table.search().select(columns).limit(1 << 30)
        return list((query.where(where) if where else query).to_list())

    def scan_by_polars(self, columns: list[str], where: str | None) -> list[Row]:
        frame = self.polars.scan_lance(self.uri).select(columns)
        frame = frame.filter(self.polars.sql_expr(where)) if where else frame
        return list(frame.collect().to_dicts())

    def finish(self) -> None:
        for name in VIEWS:
            self.refresh(name, full=False)
            self.refresh(name, full=True)
        self.read()
        if self.has_computed:
            self.refresh_computed()
        assert self.ours.verify() == []
        self.follow()

    def follow(self) -> None:
        """Apply the feed's net effect since the oldest version whose rows are known."""
        versions = sorted(self.versions.keys() & self.our_versions())
        rows = dict(self.versions[versions[0]][0])
        changes = (
            self.ours.changes(versions[0], deduplication_mode="netChanges").read_all().to_pylist()
        )
        for change in changes:
            if change["_change_type"] in ("delete", "update_preimage"):
                rows.pop(change["id"], None)
        for change in changes:
            if change["_change_type"] in ("insert", "update_postimage"):
                rows[change["id"]] = change
        values = {key: (row["x"], row["g"]) for key, row in rows.items()}
        assert values == {key: (row["x"], row["g"]) for key, row in self.model.items()}
        self.counts["feeds"] += 1


def check_same(actual: list[Any], expected: list[Any], what: str) -> None:
    """Raise unless two lists have the same rows, in any order."""
    has, needs = Counter(map(repr, actual)), Counter(map(repr, expected))
    assert has == needs, f"{what}: too many {has - needs}, missing {needs - has}"


ACTS: Final[dict[Callable[[MixedHistory], None], int]] = {
    MixedHistory.append: 6,
    MixedHistory.upsert: 5,
    MixedHistory.upsert_some_columns: 3,
    MixedHistory.update: 4,
    MixedHistory.delete: 4,
    MixedHistory.compact: 4,
    MixedHistory.compact_meanwhile: 3,
    MixedHistory.append_behind: 2,
    MixedHistory.change_columns: 1,
    MixedHistory.index: 1,
    MixedHistory.restore: 1,
    MixedHistory.overwrite: 1,
    MixedHistory.clean_up: 1,
    MixedHistory.configure: 1,
}


def run_history(seed: int, steps: int) -> Counter[str]:
    """Run a random history, and return how often each action happened.

    Raises:
        AssertionError: An invariant does not hold; the notes describe the history.
    """
    return seeded_runs.run(MixedHistory, seed, steps).counts


if __name__ == "__main__":
    sys.exit(seeded_runs.main(run_history, steps=20))
