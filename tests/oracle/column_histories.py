"""Random histories of nested columns, which must be identified by their ids wherever they are read.

    python -m tests.oracle.column_histories --minutes 10 [--seed 1]

We and pylance change a table of nested structs and lists in turn: columns and their parts are
renamed, swap names, are reordered, cast, widened, dropped and re-created, and become non-nullable
for a while; structs get new parts; compactions free ids; overwrites change the schema, and restores
bring old schemas back. The model is a tree of columns for each version, in which a column keeps its
number for its whole life. The rows of a version are what pylance reads. The checks:

    the feed leads from pylance's rows of one version to those of the next, both with the columns of
    the range's last version
    a stream with any limits that is restarted at every offset returns the same as ds.changes
    a stream that is read meanwhile, killed and restarted anywhere, returns each event once, with
    the columns that it knows; it never gets stuck, and a name keeps its meaning for it (see
    `feed.following.resumed_columns`)

The kit of random lives (`tests.histories`) cannot check this: the columns of its model have no
parts, and its followers start again where columns change, while here they continue.
"""

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.feed import columns_of_versions
from tests import seeded_runs as histories
from tests.spark.feed.query_runs import KilledError, Query

LEAVES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}
CASTS = {"int32": "int64", "int64": "int32", "float32": "float64", "float64": "float32"}
WIDER = {"int32": ["int64", "float64"], "float32": ["float64"]}
NAMES = "abcde"
LIMITS: list[dict[str, str]] = [
    {},
    {"maxVersionsPerTrigger": "1"},
    {"maxRowsPerTrigger": "2"},
    {"maxBytesPerTrigger": "900"},
]
STAMPS = ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")

Row = dict[str, Any]
Event = tuple[int, str, int]  # its version, its type, the row's id


@dataclass(frozen=True)
class Node:
    """A column of the model, or a part of one.

    Attributes:
        ident: Its own for its life, through renames, casts, and overwrites that keep its name.
        name: What it is called.
        kind: One of `LEAVES`, "struct" or "list".
        parts: Of a struct; or the item of a list, which is its list's whatever its number.
    """

    ident: int
    name: str
    kind: str
    parts: tuple["Node", ...] = ()

    @property
    def arrow(self) -> pa.Field:
        if self.kind == "struct":
            return pa.field(self.name, pa.struct([part.arrow for part in self.parts]))
        if self.kind == "list":
            return pa.field(self.name, pa.list_(self.parts[0].arrow))
        return pa.field(self.name, LEAVES[self.kind])

    def walk(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], "Node"]]:
        """Yield this and all below it, each behind its path, in which items have names."""
        yield (*above, self.name), self
        for part in self.parts:
            yield from part.walk((*above, self.name))


Tree = tuple[Node, ...]


def nodes(tree: Tree) -> dict[tuple[str, ...], Node]:
    return {path: node for root in tree for path, node in root.walk()}


def changed(tree: Tree, path: tuple[str, ...], do: Callable[[Tree], Tree], depth: int = 0) -> Tree:
    """Return a tree in which something was done to the siblings below a path."""
    if depth == len(path):
        return do(tree)
    return tuple(
        replace(node, parts=changed(node.parts, path, do, depth + 1))
        if node.name == path[depth]
        else node
        for node in tree
    )


def convert_value(column: Node, there: Node | None, value: Any, meaning: dict[int, int]) -> Any:
    """Convert a value of a version's column to the column that a reader knows."""
    if there is None or value is None:
        return None
    if column.kind == there.kind == "struct":
        by_ident = {part.ident: part for part in there.parts}
        pairs = [(part, by_ident.get(meaning[part.ident])) for part in column.parts]
        return {
            column_part.name: convert_value(
                column_part, part, value[part.name] if part else None, meaning
            )
            for column_part, part in pairs
        }
    if column.kind == there.kind == "list":
        return [convert_value(column.parts[0], there.parts[0], item, meaning) for item in value]
    if column.kind in CASTS and there.kind in CASTS:
        return float(value) if column.kind.startswith("float") else int(value)
    return value if column.kind == there.kind else None


class Stream:
    """A query that is read while its table changes, and what its words mean to it.

    Attributes:
        query: With its checkpoint.
        events: What it gave, in order.
    """

    def __init__(self, histories: "Histories", options: dict[str, str]) -> None:
        self.histories = histories
        self.query = Query(histories.uri, {"startingVersion": "1", **options})
        self.events: list[Event] = []
        self.columns: Tree | None = None
        self.meaning: dict[int, int] = {}
        self.num_seen = 0

    def start(self) -> None:
        """Begin a run, in which a batch that was not done may be done again."""
        before, was = self.columns, self.meaning
        self.columns = self.histories.trees[self.histories.latest]
        at = self._version_of_offset()
        self.meaning = self._meaning(before, was, at)
        self.query.start()
        self.look()

    def _version_of_offset(self) -> int | None:
        """Return the version in which the last offset is known, None for a new query."""
        if not self.query.offsets:
            return None
        return max(int(json.loads(self.query.offsets[-1])["version"]), 1)

    def _meaning(self, before: Tree | None, was: dict[int, int], at: int | None) -> dict[int, int]:
        """Return which column each known one is now, by their numbers; see `resumed_columns`."""
        columns = self.columns or ()
        now = {node.ident: node.ident for node in nodes(columns).values()}
        if at is None or before is None:
            return now
        here = nodes(self.histories.trees[at])
        alive_here = {node.ident for node in here.values()}
        ident_of: dict[tuple[str, ...], int | None] = {p: node.ident for p, node in here.items()}
        for path, node in nodes(before).items():
            ident = was[node.ident]
            if ident in alive_here:
                ident_of[path] = ident
            elif path in ident_of:
                ident_of[path] = None
        latest = {node.ident: node for node in nodes(columns).values()}
        meaning: dict[int, int] = {}
        for top in columns:
            resumed = {}
            for path, node in top.walk():
                ident = ident_of.get(path)
                if ident is not None and ident in latest and latest[ident].kind == node.kind:
                    resumed[node.ident] = ident
            identity = {node.ident: node.ident for _, node in top.walk()}
            meaning |= resumed if resumed.keys() == identity.keys() else identity
        return meaning if len({*meaning.values()}) == len(meaning) else now

    def trigger(self, kill: str = "") -> bool:
        try:
            return self.query.trigger(kill)
        finally:
            self.look()

    def look(self) -> None:
        """Check the batches that arrived since the last call."""
        for batch in self.query.batches[self.num_seen :]:
            for row in batch:
                self.histories.check_row(row, self.columns or (), self.meaning)
        self.num_seen = len(self.query.batches)

    def read_on(self) -> None:
        """Read everything, in one run or more; two runs in a row without progress are an error."""
        for _ in range(3):
            try:
                self.start()
                while self.trigger():
                    pass
                return
            except InvalidInputError as error:
                check_advice(error)
        raise AssertionError("a stream is stuck")

    @property
    def delivered(self) -> list[Event]:
        """The events of the committed batches."""
        return [event_of(row) for batch in self.query.done for row in batch]


def check_advice(error: InvalidInputError) -> None:
    """Only this may stop a stream, and only until it is started again."""
    assert "have changed since version" in str(error), error


def event_of(row: Row) -> Event:
    return row["_commit_version"], row["_change_type"], row["_rowid"]


class Histories:
    """One table, its history, and the model of its columns.

    Args:
        folder: Where the table is made.
        seed: Of the dice.
    """

    def __init__(self, folder: str, seed: int) -> None:
        self.uri, self.dice = str(Path(folder) / "table"), random.Random(seed)
        self.numbers = itertools.count(1000)
        self.keys = itertools.count()
        self.notes = [f"seed {seed}"]
        self.file_version = self.dice.choice(["2.0", "2.1", "2.2"])
        self.adds_parts = False
        self.trees: dict[int, Tree] = {}
        self.rows: dict[int, dict[int, Row]] = {0: {}}
        tree = self.new_tree()
        lance.write_dataset(
            self.data(tree, 6),
            self.uri,
            max_rows_per_file=4,
            enable_stable_row_ids=True,
            data_storage_version=self.file_version,
        )
        self.look(f"pylance creates {tree} in {self.file_version}", lambda _: tree)
        self.stream = Stream(self, self.dice.choice(LIMITS))

    # --- what is there

    @property
    def ours(self) -> Any:
        return lance_stream.open_dataset(self.uri)

    @property
    def theirs(self) -> Any:
        return lance.dataset(self.uri)

    @property
    def latest(self) -> int:
        return max(self.trees)

    @property
    def tree(self) -> Tree:
        return self.trees[self.latest]

    def new_node(self, name: str, depth: int = 0) -> Node:
        kind = self.dice.choice([*LEAVES, *(["struct"] * 3 + ["list"]) * (depth < 2)])
        parts: Tree = ()
        if kind == "struct":
            names = self.dice.sample(NAMES, self.dice.randint(1, 3))
            parts = tuple(self.new_node(name, depth + 1) for name in names)
        elif kind == "list":
            parts = (self.new_node("item", depth + 1),)
        return Node(next(self.numbers), name, kind, parts)

    def new_tree(self) -> Tree:
        names = self.dice.sample(NAMES, self.dice.randint(1, 3))
        return (Node(0, "id", "int64"), *map(self.new_node, names))

    def value(self, node: Node) -> Any:
        if self.dice.random() < 0.2 and (node.kind != "struct" or self.file_version != "2.0"):
            return None
        if node.kind == "struct":
            return {part.name: self.value(part) for part in node.parts}
        if node.kind == "list":
            return [self.value(node.parts[0]) for _ in range(self.dice.randint(0, 3))]
        number = self.dice.randint(0, 99)
        return {"s": f"s{number}", "f": float(number), "i": number}[node.kind[0]]

    def data(self, tree: Tree, num_rows: int) -> pa.Table:
        rows = [
            {node.name: self.value(node) for node in tree} | {"id": next(self.keys)}
            for _ in range(num_rows)
        ]
        return pa.Table.from_pylist(rows, pa.schema([node.arrow for node in tree]))

    def by(self, us: Callable[[], object], pylance: Callable[[], object]) -> str:
        writer = self.dice.choice(["we", "pylance"])
        (us if writer == "we" else pylance)()
        return writer

    # --- verbs: each does something, and tells the columns that there are then

    def append(self) -> tuple[str, Tree]:
        data = self.data(self.tree, 2)
        writer = self.by(
            lambda: self.ours.append(data),
            lambda: lance.write_dataset(data, self.uri, mode="append"),
        )
        return f"{writer} append", self.tree

    def change_rows(self) -> tuple[str, Tree]:
        ids = sorted(row["id"] for row in self.rows[self.latest].values())
        if len(ids) < 3:
            return self.append()
        some = self.dice.sample(ids, 2)
        if self.dice.random() < 0.4:
            where = f"id IN ({some[0]}, {some[1]})"
            writer = self.by(lambda: self.ours.delete(where), lambda: self.theirs.delete(where))
            return f"{writer} delete {where}", self.tree
        data = self.data(self.tree, 2).set_column(0, "id", pa.array(some, pa.int64()))
        self.ours.upsert(data, on="id")
        return f"we upsert {some}", self.tree

    def overwrite(self) -> tuple[str, Tree]:
        tree = self.overwritten(self.tree)
        data = self.data(tree, 3)
        writer = self.by(
            lambda: self.ours.overwrite(data),
            lambda: lance.write_dataset(data, self.uri, mode="overwrite"),
        )
        return f"{writer} overwrite with {tree}", tree

    def overwritten(self, tree: Tree, depth: int = 0) -> Tree:
        """Return the columns in another order, some replaced by others of the same name."""
        columns = []
        for node in self.dice.sample(tree, len(tree)):
            if node.ident == 0:
                columns.append(node)
            elif self.dice.random() < 0.2:
                columns.append(named_like(self.new_node(node.name, depth), node))
            elif self.dice.random() < 0.85:
                columns.append(replace(node, parts=self.overwritten_parts(node, depth)))
        free = [name for name in NAMES if name not in {node.name for node in tree}]
        if not columns or (free and self.dice.random() < 0.3):
            name = self.dice.choice(free) if free else "z"
            columns.append(self.new_node(name, depth))
        if depth == 0:  # an upsert's key comes first in `data`
            columns.sort(key=lambda node: node.ident != 0)
        return tuple(columns)

    def overwritten_parts(self, node: Node, depth: int) -> Tree:
        if node.kind == "struct":
            return self.overwritten(node.parts, depth + 1)
        if node.kind == "list":
            (item,) = node.parts
            return (replace(item, parts=self.overwritten_parts(item, depth + 1)),)
        return ()

    def restore(self) -> tuple[str, Tree]:
        version = self.dice.choice([*self.trees])
        writer = self.by(
            lambda: self.ours.restore(version),
            lambda: lance.dataset(self.uri, version=version).restore(),
        )
        return f"{writer} restore {version}", self.trees[version]

    def compact(self) -> tuple[str, Tree]:
        if self.file_version == "2.0" and any(node.kind == "struct" for node in self.tree):
            self.ours.compact(1000)  # pylance fails where rows are older than a struct
            return "we compact", self.tree
        writer = self.by(
            lambda: self.ours.compact(1000),
            lambda: self.theirs.optimize.compact_files(target_rows_per_fragment=1000),
        )
        return f"{writer} compact", self.tree

    def chosen(self, *, is_leaf: bool = False, in_lists: bool = True) -> tuple[str, ...] | None:
        """Return the path of a random column, or of a named part."""
        paths = [
            path
            for path, node in nodes(self.tree).items()
            if path != ("id",)
            and (path[-1] != "item" or is_leaf)
            and (not is_leaf or node.kind in CASTS)
            and (in_lists or "item" not in path)
        ]
        return self.dice.choice(paths) if paths else None

    def siblings(self, path: tuple[str, ...]) -> Tree:
        return nodes(self.tree)[path[:-1]].parts if len(path) > 1 else self.tree

    def rename(self) -> tuple[str, Tree]:
        path = self.chosen()
        if path is None:
            return self.append()
        taken = {sibling.name for sibling in self.siblings(path)}
        name = self.dice.choice([name for name in NAMES if name not in taken] or ["z"])
        if name in taken:
            return self.append()
        ours, theirs = our_path(path), ".".join(path)
        writer = self.by(
            lambda: self.ours.rename_columns({ours: name}),
            lambda: self.theirs.alter_columns({"path": theirs, "name": name}),
        )
        return f"{writer} rename {theirs} to {name}", renamed(self.tree, path, {path[-1]: name})

    def swap(self) -> tuple[str, Tree]:
        """Two columns, or two parts of a struct, change names."""
        path = self.chosen()
        others = [] if path is None else [e.name for e in self.siblings(path) if e.name != path[-1]]
        others = [other for other in others if other != "id"]
        if path is None or not others:
            return self.rename()
        other = (*path[:-1], self.dice.choice(others))
        self.ours.rename_columns({our_path(path): other[-1], our_path(other): path[-1]})
        names = {path[-1]: other[-1], other[-1]: path[-1]}
        return f"we swap {path} and {other}", renamed(self.tree, path, names)

    def drop(self) -> tuple[str, Tree]:
        path = self.chosen(in_lists=self.adds_parts)
        if path is None or len(self.siblings(path)) < 2:
            return self.append()
        name = our_path(path)
        if self.adds_parts:  # pylance drops the last part that is stored
            writer = "we"
            try:
                self.ours.drop_columns([name])
            except InvalidInputError as error:
                assert "Compact the table first" in str(error), error  # noqa: PT017  # it says so
                self.ours.compact(1000)
                return f"we compact, to drop {name}", self.tree
        else:
            writer = self.by(
                lambda: self.ours.drop_columns([name]), lambda: self.theirs.drop_columns([name])
            )
        rest = changed(
            self.tree, path[:-1], lambda some: tuple(e for e in some if e.name != path[-1])
        )
        return f"{writer} drop {name}", rest

    def add(self) -> tuple[str, Tree]:
        free = [name for name in NAMES if name not in {node.name for node in self.tree}]
        if not free:
            return self.drop()
        node = self.new_node(self.dice.choice(free))
        writer = self.by(
            lambda: self.ours.add_columns(node.arrow), lambda: self.theirs.add_columns(node.arrow)
        )
        return f"{writer} add {node}", (*self.tree, node)

    def add_part(self) -> tuple[str, Tree]:
        """A struct gets a part, without values or, outside of lists, with computed ones."""
        structs = [path for path, node in nodes(self.tree).items() if node.kind == "struct"]
        if not structs:
            return self.add()
        self.adds_parts = True
        path = self.dice.choice(structs)
        parts = nodes(self.tree)[path].parts
        free = [name for name in NAMES if name not in {node.name for node in parts}]
        if not free:
            return self.append()
        node = self.new_node(self.dice.choice(free), depth=2)
        name = our_path((*path, node.name))
        if "item" not in path and self.file_version != "2.0" and self.dice.random() < 0.4:
            node = replace(node, kind="int64")
            self.ours.add_columns({name: "id * 2"})
            writer = "we compute and"
        elif self.file_version == "2.2" and self.dice.random() < 0.5:
            self.theirs.add_columns(around(self.tree, path, node.arrow))
            writer = "pylance"
        else:
            self.ours.add_columns(node.arrow.with_name(name))
            writer = "we"
        tree = changed(self.tree, path, lambda some: (*some, node))
        return f"{writer} add {name} {node.kind}", tree

    def forbid_nulls(self) -> tuple[str, Tree]:
        path = self.chosen()
        if path is None:
            return self.append()
        name = our_path(path)
        change = {"path": name, "nullable": False}
        try:
            self.ours.alter_columns(change)
        except InvalidInputError as error:
            assert "some rows are null in it" in str(error), error  # noqa: PT017  # it says so
            return f"{name} has nulls", self.tree
        back = {"nullable": True}
        writer = self.by(
            lambda: self.ours.alter_columns({"path": name, **back}),
            lambda: self.theirs.alter_columns({"path": ".".join(path), **back}),
        )
        return f"we forbid nulls in {name}, {writer} allow them again", self.tree

    def widen(self) -> tuple[str, Tree]:
        """We cast; an item of a list with its list."""
        path = self.chosen(is_leaf=True)
        kinds = [] if path is None else WIDER.get(nodes(self.tree)[path].kind, [])
        if path is None or not kinds:
            return self.append()
        kind = self.dice.choice(kinds)
        tree = changed(
            self.tree,
            path[:-1],
            lambda some: tuple(replace(e, kind=kind) if e.name == path[-1] else e for e in some),
        )
        named = path
        while named[-1] == "item":
            named = named[:-1]
        change = {"path": our_path(named), "data_type": nodes(tree)[named].arrow.type}
        name = named[-1]
        taken = {sibling.name for sibling in self.siblings(named)}
        if "y" not in taken and self.dice.random() < 0.3:
            name = change["name"] = "y"
        self.ours.alter_columns(change)
        return f"we widen {path} to {kind} {name}", renamed(tree, named, {named[-1]: name})

    def cast(self) -> tuple[str, Tree]:
        path = self.chosen(is_leaf=True)
        if path is None or (len(path) > 1 and self.file_version == "2.0"):
            return self.append()  # pylance reads no part of a struct that it has cast in 2.0
        kind = CASTS[nodes(self.tree)[path].kind]
        change = {"path": ".".join(path), "data_type": LEAVES[kind]}
        name = path[-1]
        taken = {sibling.name for sibling in self.siblings(path)}
        if name != "item" and "z" not in taken and self.dice.random() < 0.3:
            name = change["name"] = "z"
        self.theirs.alter_columns(change)

        def do(some: Tree) -> Tree:
            return tuple(
                replace(e, kind=kind, name=name) if e.name == path[-1] else e for e in some
            )

        return f"pylance cast {path} to {kind} {name}", changed(self.tree, path[:-1], do)

    def step(self) -> None:
        verbs = (
            [self.append, self.change_rows, self.rename, self.swap, self.cast, self.widen] * 3
            + [self.drop, self.add, self.add_part, self.compact, self.overwrite] * 2
            + [self.restore, self.forbid_nulls]
        )
        verb = self.dice.choice(verbs)
        before = self.tree
        try:
            what, tree = verb()
        except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
            if (
                isinstance(error, lance_stream.LanceStreamError)
                or self.theirs.version > self.latest
            ):
                raise
            what, tree = f"{verb.__name__} is more than pylance can do", before
        self.look(what, lambda _: tree)
        self.follow()

    def look(self, what: str, tree_of: Callable[[int], Tree]) -> None:
        recorded, latest = max(self.trees, default=0), int(self.theirs.version)
        self.notes.append(f"{latest}: {what}")
        for version in range(recorded + 1, latest + 1):
            # of several versions only the last one has other columns
            self.trees[version] = tree_of(version) if version == latest else self.trees[recorded]
            self.rows[version] = self.snapshot(version)

    def snapshot(self, version: int) -> dict[int, Row]:
        """Return the rows of a version by their ids, as pylance has them."""
        names = [node.name for node in self.trees[version]]
        ds = lance.dataset(self.uri, version=version)
        assert [*ds.schema.names] == names, "the model knows the columns"
        rows = ds.to_table(columns=[*names, *STAMPS]).to_pylist()
        return {row["_rowid"]: row for row in rows}

    # --- the law

    def follow(self) -> None:
        """Perhaps read on with the stream; perhaps it dies, and is started again."""
        chance = self.dice.random()
        if chance < 0.4:
            return
        try:
            if self.query_is_new() or chance < 0.75:
                self.notes.append("    the stream is started")
                self.stream.start()
            kill = self.dice.choice(["", "", "", "before planning", "before commit"])
            self.notes.append(f"    the stream reads {kill and 'and dies ' + kill}")
            self.stream.trigger(kill)
        except KilledError:
            self.stream.query.reader = None
        except InvalidInputError as error:
            check_advice(error)
            self.notes.append(f"    {error}")
            self.stream.query.reader = None

    def query_is_new(self) -> bool:
        return self.stream.query.reader is None

    def under(self, version: int, columns: Tree, meaning: dict[int, int]) -> dict[int, Row]:
        return {
            row_id: self.row_under(version, row, columns, meaning)
            for row_id, row in self.rows[version].items()
        }

    def row_under(self, version: int, row: Row, columns: Tree, meaning: dict[int, int]) -> Row:
        by_ident = {node.ident: node for node in self.trees[version]}
        pairs = [(column, by_ident.get(meaning[column.ident])) for column in columns]
        values = {
            column.name: convert_value(column, there, row[there.name] if there else None, meaning)
            for column, there in pairs
        }
        return values | {stamp: row[stamp] for stamp in STAMPS}

    def check_row(self, row: Row, columns: Tree, meaning: dict[int, int]) -> None:
        """Check a change against the rows of its version."""
        version, kind, row_id = event_of(row)
        at = version - (kind in ("delete", "update_preimage"))
        expected = self.row_under(at, self.rows[at][row_id], columns, meaning)
        actual = {name: row[name] for name in expected}
        assert actual == expected, (version, kind, actual, expected)

    def finish(self) -> None:
        """Check the feed of some ranges, fresh streams, and the one that was read all along."""
        versions = [0, *self.trees]
        self.check_feed(0, self.latest)
        for _ in range(3):
            self.check_feed(*sorted(self.dice.sample(versions, 2)))
        whole = self.ours.changes(0).read_all().to_pylist()
        self.notes.append("the stream reads on")
        self.stream.read_on()
        assert sorted(self.stream.delivered) == sorted(map(event_of, whole))
        for limits in LIMITS:
            self.notes.append(f"a fresh stream with {limits}")
            query = Query(self.uri, {"startingVersion": "1", **limits})
            query.start()
            while query.trigger():
                query.start()
            # where a version is cut, the two images of an update stand beside each other
            assert sorted(query.rows, key=event_of) == sorted(whole, key=event_of)

    def check_feed(self, after: int, through: int) -> None:
        self.notes.append(f"changes after {after} through {through}")
        if not through:
            return
        columns = self.trees[through]
        meaning = {node.ident: node.ident for node in nodes(columns).values()}
        feed = self.ours.changes(after, through).read_all().to_pylist()
        rows = self.under(after, columns, meaning) if after else {}
        by_version: dict[int, list[Row]] = {}
        for row in feed:
            self.check_row(row, columns, meaning)
            by_version.setdefault(row["_commit_version"], []).append(row)
        for version in range(after + 1, through + 1):
            mentioned = set()
            for row in by_version.get(version, []):
                mentioned.add(row["_rowid"])
                if row["_change_type"] in ("delete", "update_preimage"):
                    del rows[row["_rowid"]]
                else:
                    rows[row["_rowid"]] = {k: row[k] for k in (*(e.name for e in columns), *STAMPS)}
            newer = self.under(version, columns, meaning)
            assert rows.keys() == newer.keys()
            assert all(rows[row_id] == newer[row_id] for row_id in mentioned & newer.keys())
            rows = newer  # what was dropped is gone without a word
        self.notes.pop()


def named_like(node: Node, before: Node) -> Node:
    """Return a column that an overwrite gives in place of one of its name."""
    pairs = {part.name: part for part in before.parts} if node.kind == before.kind else {}
    parts = tuple(
        named_like(part, pairs[part.name]) if part.name in pairs else part for part in node.parts
    )
    return replace(node, ident=before.ident, parts=parts)


def around(tree: Tree, path: tuple[str, ...], part: pa.Field) -> pa.Field:
    """Return a new part of a struct, with the fields around it only."""
    kinds = nodes(tree)
    field = part
    for depth in range(len(path), 0, -1):
        is_struct = kinds[path[:depth]].kind == "struct"
        kind = pa.struct([field]) if is_struct else pa.list_(field)
        field = pa.field(path[depth - 1], kind)
    return field


def our_path(path: Sequence[str]) -> str:
    return ".".join(value for value in path if value != "item")


def renamed(tree: Tree, path: tuple[str, ...], names: dict[str, str]) -> Tree:
    return changed(
        tree,
        path[:-1],
        lambda some: tuple(replace(node, name=names.get(node.name, node.name)) for node in some),
    )


def run(seed: int, num_steps: int) -> int:
    """Make one history and check it; return how many versions it has."""
    leap = 1 if seed % 2 else columns_of_versions.SHORTEST_LEAP  # histories are short
    with mock.patch.object(columns_of_versions, "SHORTEST_LEAP", leap):
        return histories.run(Histories, seed, num_steps).latest


def play(seed: int, num_steps: int) -> dict[str, int]:
    """Make a history, and count its versions."""
    return {"versions": run(seed, num_steps)}


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=12, what="verbs"))
