"""Random histories of one table by two writers, a model of its rows, and the law of the feed.

    python -m tests.oracle.feed_histories --minutes 10 [--seed 1]

We and pylance take turns; the dice choose what is done. Beside the table stands a model in plain
Python: for each version its columns and its rows, and for each row the version in which it was
last touched. From the model follows what the feed has to say, whoever wrote:

    snapshot(a) + feed(a, b) = snapshot(b), version by version; a row that is not mentioned keeps
    what it had, but for columns that its version dropped
    each version tells of exactly the rows that its verb touched, by the right word
    pre-images and deleted rows are rows of the version before
    net changes are the fold of the feed, the difference of the model, and the specification's own
    queries with pylance's deleted rows where those are right
    without updates an update is a delete and an insert; without backfills a new column's values
    are no change
    a cleanup does not change the feed of the versions that it keeps

Rows are compared under the columns of the range's last version.
"""

import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_stream
from lance_stream.feed.ancestry import restored_version
from tests import seeded_runs as histories

STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
NAMES = "abcde"
KINDS = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}
WIDER = {"int32": "int64", "float32": "float64"}
"""What a column is cast to, and what else an older value can be shown as."""

FILE_VERSIONS = ["2.0", "2.1", "2.2"]
HIDDEN_LINEAGE = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "9"}


# --- the model


@dataclass(frozen=True)
class Column:
    """A column of the model.

    Attributes:
        ident: Its own for its whole life: a rename keeps it, a cast and an overwrite do not.
        name: What it is called.
        kind: One of `KINDS`.
        is_required: Whether it must not be null.
    """

    ident: int
    name: str
    kind: str
    is_required: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the model.

    Attributes:
        serial: Its own for its whole life, as its row id is.
        values: By the columns' idents; none for null.
        touched: The version that last wrote it.
        filled: The version that last gave it a value in a new column.
    """

    serial: int
    values: Mapping[int, Any]
    touched: int
    filled: int = 0


@dataclass(frozen=True)
class State:
    """One version of the model.

    Attributes:
        columns: All but the key.
        rows: By key.
    """

    columns: tuple[Column, ...] = ()
    rows: Mapping[int, Row] = field(default_factory=dict)

    def by_serial(self) -> dict[int, Row]:
        return {row.serial: row for row in self.rows.values()}

    def column(self, name: str) -> Column | None:
        return next((each for each in self.columns if each.name == name), None)

    @property
    def schema(self) -> pa.Schema:
        own = [pa.field(e.name, KINDS[e.kind], not e.is_required) for e in self.columns]
        return pa.schema([pa.field("id", pa.int64(), nullable=False), *own])


Built = Callable[[int], State]
"""Gives the state that a verb leads to, for the number of the version that it makes."""


@dataclass
class Expected:
    """What changed between two versions, by the rows' serials.

    Attributes:
        gone: Rows that were deleted.
        come: Rows that were inserted.
        changed: Rows that were updated.
        maybe: Rows that may count as updated: a restore brought back a dropped column in which
            they have no value, or removed what distinguished a backfill from an update.
    """

    gone: set[int]
    come: set[int]
    changed: set[int]
    maybe: set[int]


Change = dict[str, Any]
Rows = dict[int, dict[str, Any]]


@dataclass
class ChangedRows:
    """The rows that a part of the feed changes, by row id."""

    gone: set[int] = field(default_factory=set)
    come: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)


def rows_changed_by(changes: Iterable[Change]) -> ChangedRows:
    """Return which rows have changes, whatever their values are."""
    changed_rows = ChangedRows()
    for change in changes:
        kind = change["_change_type"].split("_")[0]
        {"delete": changed_rows.gone, "insert": changed_rows.come, "update": changed_rows.changed}[
            kind
        ].add(change["_rowid"])
    return changed_rows


def row_ids_in(reader: pa.RecordBatchReader) -> set[int]:
    return {*pa.Table.from_batches(reader, reader.schema)["_rowid"].to_pylist()}


def check_law(changes: list[Change], older: Rows, newer: Rows, lost: set[str]) -> ChangedRows:
    """Check that changes lead from the rows of one version to those of another.

    Args:
        changes: In the feed's order.
        older: The rows of the older version, by row id.
        newer: The same of the newer one.
        lost: Columns that the newer version has dropped: rows lose them and nothing is said.

    Returns:
        The ids of the rows that have changes.
    """
    changed_rows, rows = ChangedRows(), dict(older)
    order = ["delete", "update", "insert"]
    kinds = [each["_change_type"].split("_")[0] for each in changes]
    assert kinds == sorted(kinds, key=order.index), "deletes, updates, inserts, in this order"
    before: dict[int, dict[str, Any]] = {}
    for change in changes:
        row_id, kind = change["_rowid"], change["_change_type"]
        content = {k: v for k, v in change.items() if k in STAMPS or not k.startswith("_")}
        if kind == "delete":
            assert rows.pop(row_id) == content, "a deleted row is one of the older version"
            changed_rows.gone.add(row_id)
        elif kind == "update_preimage":
            assert row_id not in before
            assert rows.pop(row_id) == content, "a pre-image is a row of the older version"
            before[row_id] = content
        elif kind == "update_postimage":
            del before[row_id]
            rows[row_id] = content
            changed_rows.changed.add(row_id)
        else:
            assert kind == "insert"
            assert row_id not in rows, "an inserted row is new"
            rows[row_id] = content
            changed_rows.come.add(row_id)
    assert before == {}, "each pre-image has its post-image"
    for row_id in rows.keys() - changed_rows.changed - changed_rows.come:
        rows[row_id] = {**rows[row_id], **dict.fromkeys(lost)}
    assert rows == newer, "snapshot + feed = snapshot"
    return changed_rows


def shows(old: str, new: str) -> bool:
    """Return whether values of one kind can be shown as another: numbers are whole and small."""
    return (old == "string") == (new == "string")


def as_kind(value: Any, kind: str) -> Any:
    if value is None or kind == "string":
        return value
    return float(value) if kind.startswith("float") else int(value)


def sql_type(kind: str) -> str:
    return {"int32": "INT", "int64": "BIGINT", "float32": "FLOAT", "float64": "DOUBLE"}[kind]


def versions_that_reuse_ids(ds: lance_stream.Dataset, versions: Iterable[int]) -> set[int]:
    """Return the versions whose new columns have ids of columns that were dropped before.

    A compaction has removed the values under the id: what it means is known from the versions
    between alone.
    """
    reusing: set[int] = set()
    dropped: set[int] = set()
    before: set[int] = set()
    for version in sorted(versions):
        ids = {field.id for field in ds.checkout(version).table.schema.walk()}
        if ids & dropped:
            reusing.add(version)
        dropped = (dropped | (before - ids)) - ids
        before = ids
    return reusing


def lost_lineages(ds: lance_stream.Dataset, unstamped: Iterable[int] = ()) -> set[int]:
    """Return before which versions a cleanup removes what the feed of later ones needs.

    A restore reaches back to a version before them, and what comes between, now gone as well, gave
    field ids another meaning (an overwrite, another restore, or a new column with the id of one
    that was dropped and compacted away), or changed rows without new row versions.

    Args:
        ds: The newest version.
        unstamped: Versions that changed rows without new row versions.
    """
    infos = {version.version: version.operation for version in ds.versions()}
    unknown = {v for v, name in infos.items() if name in ("Overwrite", "Restore")} | {*unstamped}
    unknown |= versions_that_reuse_ids(ds, infos)
    restored = {v: restored_version(ds.checkout(v).table) for v in infos}
    return {
        first
        for restore, origin in restored.items()
        for between in unknown
        if origin is not None and between > origin
        for first in range(max(between, origin + 2), restore)
    }


class Histories:
    """One table, its history, and the model of it.

    Args:
        folder: Where the table is made.
        seed: Of the dice.
    """

    config: Mapping[str, str] = {}

    def __init__(self, folder: str, seed: int) -> None:
        self.uri, self.dice = str(Path(folder) / "table"), random.Random(seed)
        self.next_serial = self.next_ident = 0
        self.next_key = 0
        self.states: dict[int, State] = {0: State()}
        self.restored: set[int] = set()
        self.unstamped: dict[int, tuple[int, set[int]]] = {}  # the column and rows of rewrites
        self.row_ids: dict[int, int] = {}
        self.origins: dict[int, int] = {}
        self.snapshots: dict[int, dict[int, dict[str, Any]]] = {0: {}}
        self.notes: list[str] = [f"seed {seed}"]
        self.create()

    # --- what is there

    @property
    def latest(self) -> int:
        return int(lance.dataset(self.uri).version)

    @property
    def now(self) -> State:
        return self.states[max(self.states)]

    @property
    def ours(self) -> Any:
        return lance_stream.open_dataset(self.uri)

    @property
    def theirs(self) -> Any:
        return lance.dataset(self.uri)

    def ident(self) -> int:
        self.next_ident += 1
        return self.next_ident

    def serial(self) -> int:
        self.next_serial += 1
        return self.next_serial

    def value(self, column: Column) -> Any:
        if not column.is_required and self.dice.random() < 0.2:
            return None
        number = self.dice.randint(0, 99)
        if column.kind == "string":
            return f"s{number}"
        return float(number) if column.kind.startswith("float") else number

    def values(self, columns: Iterable[Column]) -> dict[int, Any]:
        return {column.ident: self.value(column) for column in columns}

    def new_columns(self) -> tuple[Column, ...]:
        names = self.dice.sample(NAMES, self.dice.randint(1, 3))
        return tuple(Column(self.ident(), name, self.dice.choice([*KINDS])) for name in names)

    def new_keys(self, most: int = 6) -> list[int]:
        num = self.dice.randint(1, most)
        self.next_key += num
        return list(range(self.next_key - num, self.next_key))

    def known_keys(self, most: int = 5) -> list[int]:
        """Keys that are there or were once: an upsert of the latter brings them back."""
        return self.dice.sample(range(self.next_key), min(self.next_key, most))

    def table_of(self, rows: Mapping[int, Mapping[int, Any]], state: State) -> pa.Table:
        columns: dict[str, list[Any]] = {"id": list(rows)}
        for column in state.columns:
            columns[column.name] = [values.get(column.ident) for values in rows.values()]
        return pa.table(columns, state.schema)

    def by(self, us: Callable[[], object], pylance: Callable[[], object]) -> str:
        """Let one of the two writers do something."""
        who = self.dice.choice(["we", "pylance"])
        (us if who == "we" else pylance)()
        return who

    # --- verbs: each does something, and tells what the table is then

    def create(self) -> None:
        state = State(self.new_columns())
        rows = {key: self.values(state.columns) for key in self.new_keys(20)}
        data = self.table_of(rows, state)
        version = self.dice.choice(FILE_VERSIONS)

        def by_us() -> None:
            made = lance_stream.create_dataset(
                self.uri, state.schema, file_version=version, config=self.config
            )
            self.look("we create", lambda _: state)
            made.append(data)

        def by_pylance() -> None:
            lance.write_dataset(
                data,
                self.uri,
                max_rows_per_file=7,
                enable_stable_row_ids=True,
                data_storage_version=version,
            )

        who = self.by(by_us, by_pylance)
        self.look(
            f"{who}: {len(rows)} rows of {version}", lambda at: self.with_new(state, rows, at)
        )
        if self.config and who != "we":
            lance.dataset(self.uri).update_config(self.config)
            self.look("config", lambda _: self.states[max(self.states)])

    def with_new(self, state: State, rows: Mapping[int, Mapping[int, Any]], at: int) -> State:
        new = {key: Row(self.serial(), dict(values), at) for key, values in rows.items()}
        return replace(state, rows={**state.rows, **new})

    def append(self) -> tuple[str, Built]:
        now = self.now
        rows = {key: self.values(now.columns) for key in self.new_keys()}
        data = self.table_of(rows, now)
        who = self.by(
            lambda: self.ours.append(data),
            lambda: lance.write_dataset(data, self.uri, mode="append"),
        )
        return f"{who} append {list(rows)}", lambda at: self.with_new(now, rows, at)

    def upsert(self) -> tuple[str, Built]:
        now = self.now
        keys = [*self.known_keys(), *(self.new_keys(3) if self.dice.random() < 0.5 else [])]
        rows = {key: self.values(now.columns) for key in keys}
        data = self.table_of(rows, now)

        def by_pylance() -> None:
            merge = self.theirs.merge_insert("id").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(data)

        who = self.by(lambda: self.ours.upsert(data, on="id"), by_pylance)
        return f"{who} upsert {keys}", lambda at: self.upserted(now, rows, (), at)

    def upserted(
        self,
        state: State,
        rows: Mapping[int, Mapping[int, Any]],
        doomed: Iterable[int],
        at: int,
    ) -> State:
        changed = {
            key: replace(state.rows[key], values={**state.rows[key].values, **values}, touched=at)
            for key, values in rows.items()
            if key in state.rows
        }
        stay = {key: row for key, row in state.rows.items() if key not in doomed}
        after = replace(state, rows={**stay, **changed})
        return self.with_new(after, {k: v for k, v in rows.items() if k not in state.rows}, at)

    def cdc(self) -> tuple[str, Built]:
        now, keys = self.now, [*self.known_keys(), *self.new_keys(2)]
        doomed = {key for key in keys if self.dice.random() < 0.4}
        rows = {key: self.values(now.columns) for key in keys}
        data = self.table_of(rows, now).append_column("gone", pa.array([k in doomed for k in keys]))
        self.ours.upsert(data, on="id", delete_when="gone", except_columns=["gone"])
        kept = {key: values for key, values in rows.items() if key not in doomed}
        return f"we cdc {kept.keys()} without {doomed}", lambda at: self.upserted(
            now, kept, doomed, at
        )

    def some_columns(self) -> tuple[str, Built]:
        """Matched rows get new values in one column."""
        now = self.now
        if not now.columns:
            return self.append()
        column = self.dice.choice(now.columns)
        keys = [key for key in self.known_keys() if key in now.rows]
        if not keys:
            return self.append()
        rows = {key: self.values([column]) for key in keys}
        data = self.table_of(rows, now).select(["id", column.name])
        who = self.by(
            lambda: self.ours.upsert(data, on="id"),
            lambda: self.theirs.merge_insert("id").when_matched_update_all().execute(data),
        )
        return f"{who} set {column.name} of {keys}", lambda at: self.upserted(now, rows, (), at)

    def delete(self) -> tuple[str, Built]:
        now = self.now
        kind = self.dice.choice(["keys", "keys", "first", "none", "all"])
        keys = set(self.known_keys())
        if kind == "keys":
            where = f"id IN ({', '.join(map(str, keys))})"
        elif kind == "first":
            limit = self.dice.randint(0, self.next_key)
            where, keys = f"id < {limit}", set(range(limit))
        else:
            where = "id < 0" if kind == "none" else "id >= 0"
            keys = set() if kind == "none" else set(now.rows)
        if kind == "all" and self.dice.random() < 0.5:
            who = "pylance truncates:"
            self.theirs.truncate_table()
        else:
            who = self.by(lambda: self.ours.delete(where), lambda: self.theirs.delete(where))
        rows = {key: row for key, row in now.rows.items() if key not in keys}
        return f"{who} delete {where}", lambda _: replace(now, rows=rows)

    def update(self) -> tuple[str, Built]:
        now = self.now
        numbers = [each for each in now.columns if each.kind != "string"]
        if not numbers:
            return self.append()
        column, limit = self.dice.choice(numbers), self.dice.randint(0, self.next_key + 2)
        where, name = f"id >= {limit}", column.name
        change = {name: f"CAST({name} + 1 AS {sql_type(column.kind)})"}
        who = self.by(
            lambda: self.ours.update({name: f"{name} + 1"}, where=where),
            lambda: self.theirs.update(change, where=where),
        )

        def built(at: int) -> State:
            def touched(row: Row) -> Row:
                old = row.values.get(column.ident)
                values = {**row.values, column.ident: None if old is None else old + 1}
                return replace(row, values=values, touched=at)

            rows = {k: touched(row) if k >= limit else row for k, row in now.rows.items()}
            return replace(now, rows=rows)

        return f"{who} update {name} where {where}", built

    def overwrite(self) -> tuple[str, Built]:
        now = self.now
        same = self.dice.random() < 0.5
        columns = (
            tuple(replace(column, ident=self.ident()) for column in now.columns)
            if same
            else self.new_columns()
        )
        for column in columns:
            if (before := now.column(column.name)) is not None:
                self.origins[column.ident] = before.ident
        state = State(columns)
        keys = self.dice.sample(range(self.next_key), min(self.next_key, 4)) + self.new_keys(4)
        rows = {key: self.values(columns) for key in keys}
        data = self.table_of(rows, state)
        who = self.by(
            lambda: self.ours.overwrite(data),
            lambda: lance.write_dataset(data, self.uri, mode="overwrite"),
        )
        return (
            f"{who} overwrite by {keys} with {[(column.name, column.kind) for column in columns]}",
            lambda at: self.with_new(state, rows, at),
        )

    def restore(self) -> tuple[str, Built]:
        version = self.dice.choice([state for state in self.states if state])
        who = self.by(
            lambda: self.ours.restore(version),
            lambda: lance.dataset(self.uri, version=version).restore(),
        )
        self.restored.add(self.latest)
        return f"{who} restore {version}", lambda _: self.states[version]

    def add_empty_column(self) -> tuple[str, Built]:
        now = self.now
        free = [name for name in NAMES if now.column(name) is None]
        if not free:
            return self.drop_column()
        column = Column(self.ident(), self.dice.choice(free), self.dice.choice([*KINDS]))
        new = pa.field(column.name, KINDS[column.kind])
        who = self.by(lambda: self.ours.add_columns(new), lambda: self.theirs.add_columns(new))
        return f"{who} add {column.name} {column.kind}", lambda _: replace(
            now, columns=(*now.columns, column)
        )

    def add_filled_column(self) -> tuple[str, Built]:
        now = self.now
        free = [each for each in NAMES if now.column(each) is None]
        if not free:
            return self.rename_column()
        name, plus = self.dice.choice(free), self.dice.randint(0, 9)
        value = f"id + {plus}"
        nullable = value if self.dice.random() < 0.3 else f"NULLIF({value}, -1)"
        who = self.by(
            lambda: self.ours.add_columns({name: value}),
            lambda: self.theirs.add_columns({name: nullable}),
        )
        made = self.theirs.schema.field(name)
        assert made.type == pa.int64()
        column = Column(self.ident(), name, "int64", not made.nullable)

        def built(at: int) -> State:
            rows = {
                key: replace(row, values={**row.values, column.ident: key + plus}, filled=at)
                for key, row in now.rows.items()
            }
            return replace(now, columns=(*now.columns, column), rows=rows)

        return f"{who} add {column.name} filled", built

    def drop_column(self) -> tuple[str, Built]:
        now = self.now
        if len(now.columns) < 2:
            return self.append()
        column = self.dice.choice(now.columns)
        names = [column.name]
        who = self.by(
            lambda: self.ours.drop_columns(names), lambda: self.theirs.drop_columns(names)
        )
        rest = tuple(each for each in now.columns if each != column)
        return f"{who} drop {column.name}", lambda _: replace(now, columns=rest)

    def rename_column(self) -> tuple[str, Built]:
        now = self.now
        free = [each for each in NAMES if now.column(each) is None]
        if not free or not now.columns:
            return self.append()
        column, name = self.dice.choice(now.columns), self.dice.choice(free)
        who = self.by(
            lambda: self.ours.rename_columns({column.name: name}),
            lambda: self.theirs.alter_columns({"path": column.name, "name": name}),
        )
        columns = tuple(replace(e, name=name) if e == column else e for e in now.columns)
        return f"{who} rename {column.name} to {name}", lambda _: replace(now, columns=columns)

    def swap_names(self) -> tuple[str, Built]:
        now = self.now
        if len(now.columns) < 2:
            return self.append()
        one, other = self.dice.sample(now.columns, 2)
        names = {one.name: other.name, other.name: one.name}
        self.ours.rename_columns(names)
        columns = tuple(replace(e, name=names.get(e.name, e.name)) for e in now.columns)
        return f"we swap {one.name} and {other.name}", lambda _: replace(now, columns=columns)

    def cast_column(self) -> tuple[str, Built]:
        now = self.now
        narrow = [each for each in now.columns if each.kind in WIDER]
        if not narrow:
            return self.append()
        column = self.dice.choice(narrow)
        wide = Column(self.ident(), column.name, WIDER[column.kind], column.is_required)
        self.origins[wide.ident] = column.ident
        self.theirs.alter_columns({"path": column.name, "data_type": KINDS[wide.kind]})

        def built(at: int) -> State:
            rows = {
                key: replace(
                    row, values={**row.values, wide.ident: row.values.get(column.ident)}, touched=at
                )
                for key, row in now.rows.items()
            }
            columns = tuple(wide if each == column else each for each in now.columns)
            return replace(now, columns=columns, rows=rows)

        return f"pylance cast {column.name} to {wide.kind}", built

    def compact(self) -> tuple[str, Built]:
        now, size = self.now, self.dice.choice([5, 30, 1000])
        who = self.by(
            lambda: self.ours.compact(size),
            lambda: self.theirs.optimize.compact_files(target_rows_per_fragment=size),
        )
        return f"{who} compact to {size}", lambda _: now

    def configure(self) -> tuple[str, Built]:
        now, entries = self.now, {"some.key": str(self.dice.random())}
        who = self.by(
            lambda: self.ours.update_config(entries), lambda: self.theirs.update_config(entries)
        )
        return f"{who} configure", lambda _: now

    def index(self) -> tuple[str, Built]:
        now = self.now
        self.theirs.create_scalar_index("id", "BTREE", replace=True)
        return "pylance index", lambda _: now

    def replace_data(self) -> tuple[str, Built]:
        """One column of one fragment gets another file; the writer stamps all of its rows."""
        now = self.now
        ds = self.theirs
        fragments = ds.get_fragments()
        fits = [
            (fragment, file, column)
            for fragment in fragments
            for file in fragment.metadata.files
            for column in now.columns
            if [ds.lance_schema.field(column.name).id()] == [e for e in file.fields if e >= 0]
        ]
        if not fits:
            return self.rewrite_column(stamped=True)
        fragment, old, column = self.dice.choice(fits)
        value = self.value(column)
        num_rows = fragment.physical_rows
        data = pa.table([pa.array([value] * num_rows, KINDS[column.kind])], [column.name])
        path = f"{self.ident()}-replaced.lance"
        writer = lance.file.LanceFileWriter(
            str(Path(self.uri) / "data" / path),
            data.schema,
            version=ds.data_storage_version,
        )
        writer.write_batch(data)
        writer.close()
        (field_id,) = [each for each in old.fields if each >= 0]
        new = lance.fragment.DataFile(
            path, [field_id], [0], old.file_major_version, old.file_minor_version
        )
        group = lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, new)
        keys = fragment.to_table(columns=["id"])["id"].to_pylist()
        lance.LanceDataset.commit(
            self.uri, lance.LanceOperation.DataReplacement([group]), read_version=ds.version
        )
        return (
            f"pylance replaces {column.name} of fragment {fragment.fragment_id}",
            lambda at: self.upserted(now, {key: {column.ident: value} for key in keys}, (), at),
        )

    def rewrite_column(self, stamped: bool | None = None) -> tuple[str, Built]:
        """Some rows of a fragment change in place, in a new file of one column."""
        now, ds = self.now, self.theirs
        stamped = self.dice.random() < 0.5 if stamped is None else stamped
        fragments = ds.get_fragments()
        if not fragments or not now.columns:
            return self.append()
        fragment, column = self.dice.choice(fragments), self.dice.choice(now.columns)
        keys = fragment.to_table(columns=["id"])["id"].to_pylist()
        chosen = self.dice.sample(keys, self.dice.randint(1, len(keys)))
        rows = {key: self.values([column]) for key in chosen}
        data = self.table_of(rows, now).select(["id", column.name])
        given = fragment.update_columns(data, left_on="id", right_on="id", with_offsets=stamped)
        metadata, modified = given[:2]
        operation = lance.LanceOperation.Update(
            updated_fragments=[metadata],
            fields_modified=modified,
            update_mode="rewrite_columns",
            updated_fragment_offsets={fragment.fragment_id: given[2]} if stamped else None,
        )
        lance.LanceDataset.commit(self.uri, operation, read_version=ds.version)
        if not stamped:
            self.unstamped[self.latest] = column.ident, {now.rows[key].serial for key in keys}
            # without stamps all rows of the fragment count as new
            rows = {key: rows.get(key, {}) for key in keys}
        how = "stamped" if stamped else "unstamped"
        return (
            f"pylance rewrites {column.name} of {chosen} in place, {how}",
            lambda at: self.upserted(now, rows, (), at),
        )

    def step(self) -> None:
        """Run one action, and check its result."""
        verbs = (
            [self.append, self.delete, self.update, self.upsert, self.cdc] * 4
            + [self.some_columns, self.compact, self.restore, self.rewrite_column] * 3
            + [self.overwrite, self.add_empty_column, self.add_filled_column] * 2
            + [self.drop_column, self.rename_column, self.cast_column, self.replace_data] * 2
            + [self.swap_names] * 2
            + [self.configure, self.index]
        )
        self.look(*self.dice.choice(verbs)())

    # --- the law

    def finish(self) -> None:
        """Check some ranges, and the longest one."""
        versions = sorted(self.states)
        self.check(0, versions[-1])
        for _ in range(4):
            after, through = sorted(self.dice.sample(versions, 2))
            self.notes.append(f"changes after {after} through {through}")
            self.check(after, through)
            self.notes.pop()
        self.check_cleanup(self.dice.randint(1, versions[-1]))

    def check_cleanup(self, first: int) -> None:
        """Check that a cleanup does not change the feed of the versions from one on.

        Args:
            first: The oldest version that is kept.
        """
        last = max(self.states)
        if first in lost_lineages(self.ours, self.unstamped):
            return
        ranges = [(after, after + 1) for after in range(first, last)]
        ranges += [(after, last) for after in range(first, last)]
        modes = ("none", "netChanges")

        def feeds() -> dict[tuple[int, int, str], list[Change]]:
            return {
                (*ends, mode): self.feed(*ends, deduplication_mode=mode)
                for ends in ranges
                for mode in modes
            }

        before = feeds()
        self.notes.append(f"cleanup of the versions before {first}")
        self.ours.cleanup(retain_versions=last - first + 1)
        after = feeds()
        for ends in before:
            assert after[ends] == before[ends], ends

    def look(self, what: str, built: Built) -> None:
        """Compare the versions that were made with the model."""
        known, latest = max(self.states), self.latest
        self.notes.append(f"{latest}: {what}")
        if latest == known:
            state = built(latest + 1)
            assert state == self.now, "something was changed, but no version was made"
            return
        for version in range(known + 1, latest):
            self.states[version] = self.states[known]
        self.states[latest] = built(latest)
        for version in range(known + 1, latest + 1):
            self.snapshots[version] = self.snapshot(version)

    def snapshot(self, version: int) -> dict[int, dict[str, Any]]:
        """Return the rows of a version by their ids, as pylance, we and the model see them."""
        state = self.states[version]
        names = [*state.schema.names, *STAMPS]
        theirs = lance.dataset(self.uri, version=version).to_table(columns=names)
        ours = lance_stream.open_dataset(self.uri, version=version)
        read = ours.to_table(with_row_id=True, with_row_versions=True).select(names)
        assert read.to_pylist() == theirs.to_pylist()
        rows = {row["_rowid"]: row for row in theirs.to_pylist()}
        assert len(rows) == theirs.num_rows, "a row id occurs twice"
        for row in rows.values():
            known = state.rows[row["id"]]
            expected = {column.name: known.values.get(column.ident) for column in state.columns}
            assert expected == {each: row[each] for each in expected}
            assert self.row_ids.setdefault(known.serial, row["_rowid"]) == row["_rowid"]
        assert len(rows) == len(state.rows)
        return rows

    def root(self, ident: int) -> int:
        """Return the column that a column was in the beginning, before casts and overwrites."""
        while ident in self.origins:
            ident = self.origins[ident]
        return ident

    def column_at(self, version: int, column: Column) -> Column | None:
        """Return what a column of another version is in this one; None if it is not there."""
        columns = self.states[version].columns
        same = [each for each in columns if self.root(each.ident) == self.root(column.ident)]
        return same[0] if same and shows(same[0].kind, column.kind) else None

    def under(self, version: int, through: int) -> dict[int, dict[str, Any]]:
        """Return the rows of a version by their ids, with the columns of a later one."""
        sources = [
            (column.name, column.kind, self.column_at(version, column))
            for column in self.states[through].columns
        ]
        return {
            row_id: {
                "id": row["id"],
                **{
                    name: as_kind(row[source.name], kind) if source else None
                    for name, kind, source in sources
                },
                **{stamp: row[stamp] for stamp in STAMPS},
            }
            for row_id, row in self.snapshots[version].items()
        }

    def expected(self, after: int, through: int, *, backfills: bool = True) -> Expected:
        """Return what the model says of two versions."""
        old, new = self.states[after], self.states[through]
        before, now = old.by_serial(), new.by_serial()
        both = before.keys() & now.keys()
        changed = {each for each in both if before[each].touched != now[each].touched}
        has_restore = not self.restored.isdisjoint(range(after + 1, through + 1))
        filled = {each for each in both if before[each].filled != now[each].filled}
        # of an unstamped rewrite whole fragments are doubted, also where a restore undoes it
        doubted = set(both) if has_restore and self.unstamped else set()
        # rewritten without a stamp, in a column that the end has not: nothing is left that tells it
        unseen = self.unseen_rows(after, through) & changed
        changed, doubted = changed - unseen, doubted | unseen
        if not backfills:  # what a row got in between and lost again hides what is a backfill
            maybe = doubted | (filled if has_restore else set())
            return Expected(before.keys() - both, now.keys() - both, changed, maybe)
        changed |= filled
        there = {self.root(column.ident) for column in old.columns}
        returned = [e.ident for e in new.columns if self.root(e.ident) not in there]
        changed |= {
            each for each in both if any(now[each].values.get(c) is not None for c in returned)
        }
        maybe = doubted | (set(both) if returned and has_restore else set())
        return Expected(before.keys() - both, now.keys() - both, changed, maybe)

    def unseen_rows(self, after: int, through: int) -> set[int]:
        """Return the rows that got unstamped values in columns which are not there at the end.

        Or that lost such values to a restore.
        """
        there = {self.root(column.ident) for column in self.states[through].columns}
        has_restore = not self.restored.isdisjoint(range(after + 1, through + 1))
        first = 1 if has_restore else after + 1
        rewrites = (self.unstamped.get(version) for version in range(first, through + 1))
        return {
            serial
            for rewrite in rewrites
            if rewrite is not None and self.root(rewrite[0]) not in there
            for serial in rewrite[1]
        }

    def check(self, after: int, through: int) -> None:
        """Check all that is said of one range."""
        feed = self.feed(after, through)
        net = self.feed(after, through, deduplication_mode="netChanges")
        self.check_feed(feed, after, through)
        self.check_net(net, after, through)
        self.check_fold(feed, net, after, through)
        self.check_oracle(net, after, through)
        self.check_rules(feed, after, through)
        self.check_rules(net, after, through, deduplication_mode="netChanges")
        self.check_backfills(after, through)

    def feed(self, after: int, through: int, **rules: Any) -> list[Change]:
        changes: list[Change] = self.ours.changes(after, through, **rules).read_all().to_pylist()
        return changes

    def check_feed(self, feed: list[Change], after: int, through: int) -> None:
        """Check the law, version by version."""
        assert feed == sorted(feed, key=lambda each: each["_commit_version"])
        assert feed == sorted(feed, key=lambda each: each["_commit_timestamp"])
        by_version: dict[int, list[Change]] = {}
        for change in feed:
            by_version.setdefault(change["_commit_version"], []).append(change)
        assert by_version.keys() <= {*range(after + 1, through + 1)}
        newer = self.under(after, through)
        for version in range(after + 1, through + 1):
            older, newer = newer, self.under(version, through)
            changed_rows = check_law(
                by_version.get(version, []), older, newer, self.lost(version, through)
            )
            self.check_kinds(changed_rows, self.expected(version - 1, version))

    def lost(self, version: int, through: int) -> set[str]:
        """Return which columns of a later version are not there in an older one."""
        return {
            column.name
            for column in self.states[through].columns
            if self.column_at(version, column) is None
        }

    def check_kinds(self, changed_rows: "ChangedRows", expected: Expected) -> None:
        """Check that exactly the rows that the model changed have changes."""
        ids = self.row_ids
        assert changed_rows.gone == {ids[each] for each in expected.gone}, "deleted"
        assert changed_rows.come == {ids[each] for each in expected.come}, "inserted"
        must, may = ({ids[e] for e in each} for each in (expected.changed, expected.maybe))
        assert must <= changed_rows.changed <= must | may, (
            "updated",
            must,
            changed_rows.changed,
            may,
        )

    def check_net(self, net: list[Change], after: int, through: int) -> None:
        """Check the law in one step."""
        assert {each["_commit_version"] for each in net} <= {through}
        changed_rows = check_law(
            net, self.under(after, through), self.under(through, through), set()
        )
        self.check_kinds(changed_rows, self.expected(after, through))

    def check_fold(self, feed: list[Change], net: list[Change], after: int, through: int) -> None:
        """Check that net changes are what is left of each row's changes, first to last."""
        older, newer = self.under(after, through), self.under(through, through)
        touched = {each["_rowid"] for each in feed}
        folded = ChangedRows(
            gone={each for each in touched if each in older and each not in newer},
            come={each for each in touched if each not in older and each in newer},
            changed={each for each in touched if each in older and each in newer},
        )
        changed_rows = rows_changed_by(net)
        assert changed_rows.gone == folded.gone
        assert changed_rows.come == folded.come
        for each in folded.changed - changed_rows.changed:
            assert older[each] == newer[each], "a row without a change has its old values"
        has_restore = not self.restored.isdisjoint(range(after + 1, through + 1))
        for each in changed_rows.changed - folded.changed:  # a column came back, with nothing in it
            assert has_restore
            assert older[each] == newer[each]

    def check_oracle(self, net: list[Change], after: int, through: int) -> None:
        """Compare with the specification's queries and pylance's deleted rows, where right."""
        versions = range(after + 1, through + 1)
        if self.restored.intersection(versions) or self.unstamped.keys() & versions:
            return
        delta = lance.dataset(self.uri, version=through).delta(
            begin_version=after, end_version=through
        )
        changed_rows = rows_changed_by(net)
        if after < through:
            assert changed_rows.gone == row_ids_in(delta.get_deleted_row_ids())
        assert changed_rows.come == row_ids_in(delta.get_inserted_rows())
        assert changed_rows.changed == row_ids_in(delta.get_updated_rows())

    def check_rules(self, feed: list[Change], after: int, through: int, **rules: Any) -> None:
        """Check that other rules say the same in other words."""
        without = self.feed(after, through, pre_images=False, **rules)
        assert without == [each for each in feed if each["_change_type"] != "update_preimage"]
        split = self.feed(after, through, compute_updates=False, **rules)
        words = {"update_preimage": "delete", "update_postimage": "insert"}
        expected = [
            {**e, "_change_type": words.get(e["_change_type"], e["_change_type"])} for e in feed
        ]
        expected.sort(key=lambda each: (each["_commit_version"], each["_change_type"]))
        assert split == expected

    def check_backfills(self, after: int, through: int) -> None:
        """Check that a row that only got values in new columns can be left out."""
        for version in range(after + 1, through + 1):
            changed_rows = rows_changed_by(self.feed(version - 1, version, column_backfills=False))
            self.check_kinds(changed_rows, self.expected(version - 1, version, backfills=False))
        rules = {"deduplication_mode": "netChanges", "column_backfills": False}
        changed_rows = rows_changed_by(self.feed(after, through, **rules))
        self.check_kinds(changed_rows, self.expected(after, through, backfills=False))


class WithHiddenLineage(Histories):
    """A table whose lineage goes into hidden columns of data files, where it can."""

    config: Mapping[str, str] = HIDDEN_LINEAGE


def run(seed: int, num_steps: int, kind: type[Histories] = Histories) -> int:
    """Make one history and check it; return how many versions it has."""
    return max(histories.run(kind, seed, num_steps).states)


def play(seed: int, num_steps: int) -> dict[str, int]:
    """Make a history, and count its versions."""
    kind = (Histories, WithHiddenLineage)[seed % 2]
    return {f"versions, {kind.__name__}": run(seed, num_steps, kind)}


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=15, what="verbs"))
