"""Three writers on one table, as deep in each other's commits as can be, and a model beside them.

    python -m tests.oracle.three_writers --minutes 10 [--seed 1]

Two writers are ours, one is pylance. While one of ours is in the middle of a verb, at a call of the
store that the dice choose, the others do whole verbs of their own; pylance does its verbs with a
handle that is as old. Then the model looks at each version that was made, and knows whose it is:

    what a verb changed is what it means on the version it was planned on, or on the one before its
    own; never on another, and never where another writer has changed a row of it meanwhile
    rows that it did not mean to change keep values, ids and stamps
    a micro-batch is in once, whoever brings it, and how often, and beside whom
    the primary key stays unique, both readers agree, indices say what scans say
    snapshot(a) + changes(a, b) = snapshot(b)
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.dataset import Dataset
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.store import Store
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from tests import seeded_runs as histories
from tests.contracts.watched_stores import Watch, WatchedStore

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}),
        pa.field("x", pa.float64()),
        pa.field("g", pa.int64()),
    ]
)
STAMPS = ["_row_created_at_version", "_row_last_updated_at_version"]
HIDDEN_LINEAGE = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "9"}
STEPS = (
    ("list_names", "_versions"),
    ("open_writer", ""),
    ("write", ""),
    ("create_once", ".txn"),
    ("create_once", ".manifest"),
)
WRITERS = ("a", "b", "pylance")


class TellingStore(WatchedStore):
    """A watched store that says which files it has created, once they are there."""

    def __init__(self, inner: Store, before: Watch, created: Callable[[str], None]) -> None:
        super().__init__(inner, before)
        self.created = created

    def create_once(self, path: str, data: Any, **named: Any) -> bool:
        done = super().create_once(path, data, **named)
        if done:
            self.created(path)
        return done


Values = tuple[int, float | None, int | None]


@dataclass(frozen=True)
class Row:
    """A row of the table: its values, and the versions that made and changed it."""

    values: Values
    created: int
    updated: int


Rows = dict[int, Row]


@dataclass
class Effect:
    """What a verb does to rows, by their ids."""

    gone: set[int] = field(default_factory=set)
    changed: dict[int, Values] = field(default_factory=dict)
    added: list[Values] = field(default_factory=list)
    replaces_all: bool = False
    restored: int | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.gone or self.changed or self.added or self.replaces_all or self.restored)


@dataclass(frozen=True)
class Verb:
    """Something a writer does, by us and by pylance, and what it means.

    Attributes:
        name: Its name in the notes of a history.
        by_us: Does it to an open dataset of ours.
        by_pylance: Does it, or something like it, to an open dataset of pylance's.
        effect: What it does to the rows that it was planned on.
        by_pylance_means: The same of what pylance does, if that is something else.
        batch: The number of the micro-batch that it is by us.
        rows: What comes in.
    """

    name: str
    by_us: Callable[[Any], object]
    by_pylance: Callable[[Any], object]
    effect: Callable[[Rows], Effect]
    by_pylance_means: Callable[[Rows], Effect] | None = None
    batch: int | None = None
    rows: pa.Table | None = None


def table_of(rows: Iterable[Values]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    return pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), SCHEMA)


class ThreeWriters:
    """One table, its writers and its model.

    Args:
        folder: Where the table is made.
        seed: Of the dice.
    """

    config: Mapping[str, str] = {}

    def __init__(self, folder: str, seed: int) -> None:
        self.uri, self.dice = str(Path(folder) / "table"), random.Random(seed)
        self.next_key, self.next_appended = 24, 1000
        self.busy: set[str] = set()
        self.batches: dict[int, Verb] = {}
        self.batches_in: set[int] = set()
        self.notes: list[str] = [f"seed {seed}"]
        lance.write_dataset(
            table_of(map(self.values, range(24))),
            self.uri,
            max_rows_per_file=9,
            enable_stable_row_ids=True,
            data_storage_version=self.dice.choice(["2.0", "2.1", "2.2"]),
        )
        if self.config:
            lance.dataset(self.uri).update_config(self.config)
        self.index()
        self.snapshots: dict[int, Rows] = {}
        self.look()

    # --- what is there

    @property
    def latest(self) -> int:
        return int(lance.dataset(self.uri).version)

    def look(self) -> None:
        """Read the versions that were made since the last look."""
        for version in range(max(self.snapshots, default=0) + 1, self.latest + 1):
            self.snapshots[version] = self.snapshot(version)

    def snapshot(self, version: int) -> Rows:
        names = [*SCHEMA.names, "_rowid", *STAMPS]
        theirs = lance.dataset(self.uri, version=version).to_table(columns=names)
        ds = lance_stream.open_dataset(self.uri, version=version)
        ours = ds.to_table(with_row_id=True, with_row_versions=True).select(names)
        assert ours.to_pylist() == theirs.to_pylist()
        rows = {
            row_id: Row((key, x, g), created, updated)
            for key, x, g, row_id, created, updated in zip(
                *(column.to_pylist() for column in theirs.columns), strict=True
            )
        }
        assert len(rows) == theirs.num_rows, "a row id occurs twice"
        keys = Counter(row.values[0] for row in rows.values())
        assert len(keys) == len(rows), [key for key, num in keys.items() if num > 1]
        return rows

    # --- verbs

    def values(self, key: int) -> Values:
        return key, self.dice.choice([None, 0.0, 1.0, 2.0]), self.dice.choice([None, 0, 1, 2])

    def new_keys(self, num: int) -> range:
        """Return keys for rows that are appended: no upsert brings them before they are there."""
        self.next_appended += num
        return range(self.next_appended - num, self.next_appended)

    def known_keys(self, num: int) -> list[int]:
        there = {row.values[0] for row in self.snapshots[max(self.snapshots)].values()}
        return self.dice.sample(sorted({*range(self.next_key), *there}), num)

    def verb(self) -> Verb:
        makers = (
            [self.append, self.delete, self.update, self.upsert, self.batch, self.cdc] * 3
            + [self.compact, self.change_column, self.sequenced] * 2
            + [self.configure, self.add_column, self.overwrite, self.restore]
        )
        return self.dice.choice(makers)()

    def append(self) -> Verb:
        new = [self.values(key) for key in self.new_keys(self.dice.randint(1, 5))]
        rows = table_of(new)
        return Verb(
            f"append {[each[0] for each in new]}",
            lambda ds: ds.append(rows),
            lambda ds: lance.write_dataset(rows, ds, mode="append"),
            lambda _: Effect(added=new),
            rows=rows,
        )

    def condition(self) -> tuple[str, Callable[[Values], bool]]:
        kind, number = self.dice.choice(["keys", "group", "first"]), self.dice.randint(0, 2)
        if kind == "group":
            return f"g = {number}", lambda values: values[2] == number
        if kind == "first":
            limit = self.dice.randint(0, 1 + self.next_key // 2)
            return f"id < {limit}", lambda values: values[0] < limit
        keys = self.known_keys(3)
        return f"id IN ({', '.join(map(str, keys))})", lambda values: values[0] in keys

    def delete(self) -> Verb:
        where, test = self.condition()
        return Verb(
            f"delete {where}",
            lambda ds: ds.delete(where),
            lambda ds: ds.delete(where),
            lambda rows: Effect(gone={each for each, row in rows.items() if test(row.values)}),
        )

    def update(self) -> Verb:
        where, test = self.condition()

        def effect(rows: Rows) -> Effect:
            return Effect(
                changed={
                    each: (key, None if x is None else x + 1, g)
                    for each, row in rows.items()
                    for key, x, g in [row.values]
                    if test(row.values)
                }
            )

        def verb(ds: Any) -> None:
            ds.update({"x": "x + 1.0"}, where=where)

        return Verb(f"update {where}", verb, verb, effect)

    def incoming(self) -> list[Values]:
        known = self.known_keys(self.dice.randint(1, 5))
        # keys that are near: others insert the same at the same time
        near = range(self.next_key, self.next_key + 3)
        self.next_key += self.dice.randint(0, 2)
        return [self.values(key) for key in {*known, *self.dice.sample(near, 2)}]

    def upsert(self) -> Verb:
        new = self.incoming()
        rows = table_of(new)

        def by_pylance(ds: Any) -> None:
            merge = ds.merge_insert("id").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(rows)

        return Verb(
            f"upsert {[each[0] for each in new]}",
            lambda ds: ds.upsert(rows, on="id"),
            by_pylance,
            lambda there: upserted(there, new, set()),
            rows=rows,
        )

    def cdc(self) -> Verb:
        new = self.incoming()
        doomed = {each[0] for each in new if self.dice.random() < 0.4}
        flags = pa.array([each[0] in doomed for each in new])
        rows = table_of(new).append_column("gone", flags)
        others = [each for each in new if each[0] not in doomed]
        if not others:
            return self.upsert()

        def by_us(ds: Any) -> None:
            ds.upsert(rows, on="id", delete_when="gone", except_columns=["gone"])

        def by_pylance(ds: Any) -> None:
            merge = ds.merge_insert("id").when_matched_delete()
            merge.execute(table_of(each for each in new if each[0] in doomed))

        if not doomed:
            return self.upsert()
        return Verb(
            f"cdc {[other[0] for other in others]} without {sorted(doomed)}",
            by_us,
            by_pylance,
            lambda rows: upserted(rows, others, doomed),
            lambda rows: upserted(rows, [], doomed),
        )

    def change_column(self) -> Verb:
        """Rows without g: it stays as it is, and is null in new rows; pylance inserts none."""
        new = self.incoming()
        rows = table_of(new).drop_columns(["g"])

        def meaning(there: Rows) -> Effect:
            ids = {row.values[0]: each for each, row in there.items()}
            known = {ids[each[0]]: each for each in new if each[0] in ids}
            return Effect(
                changed={
                    row_id: (key, x, there[row_id].values[2])
                    for row_id, (key, x, _) in known.items()
                },
                added=[(key, x, None) for key, x, _ in new if key not in ids],
            )

        return Verb(
            f"change x of {[each[0] for each in new]}",
            lambda ds: ds.upsert(rows, on="id"),
            lambda ds: ds.merge_insert("id").when_matched_update_all().execute(rows),
            meaning,
            lambda there: Effect(changed=meaning(there).changed),
        )

    def sequenced(self) -> Verb:
        """By us the row with the larger x counts, and the later one of two; by pylance appended."""
        new = [(key, float(self.dice.randint(0, 3)), g) for key, _, g in self.incoming()]
        rows = table_of(new)
        other = self.append()

        def meaning(there: Rows) -> Effect:
            effect = upserted(there, new, set())
            stored = {each: there[each].values[1] for each in effect.changed}
            effect.changed = {
                each: values
                for each, values in effect.changed.items()
                if stored[each] is None or values[1] >= stored[each]
            }
            return effect

        return replace(
            other,
            name=f"upsert by x {[each[0] for each in new]}, or {other.name}",
            by_us=lambda ds: ds.upsert(rows, on="id", sequence_by="x"),
            effect=meaning,
            by_pylance_means=other.effect,
        )

    def batch(self) -> Verb:
        """The next micro-batch of a stream, or one that is in already; by pylance no batch."""
        number = max(self.batches_in, default=-1) + 1
        if number and self.dice.random() < 0.25:
            number = self.dice.choice(sorted(self.batches_in))
        if number not in self.batches:
            self.batches[number] = self.new_batch(number)
        other = self.append()
        return replace(
            self.batches[number],
            name=f"{self.batches[number].name}, or {other.name}",
            by_pylance=other.by_pylance,
            by_pylance_means=other.effect,
        )

    def new_batch(self, number: int) -> Verb:
        batch = PendingBatch.of("stream", number, "query")
        upserted = self.upsert()
        appended = self.append()
        verb = self.dice.choice([upserted, appended])
        rows = verb.rows

        def by_us(ds: Any) -> None:
            if verb is appended:
                append(ds.table, rows, batch)
            else:
                upsert(ds.table, rows, UpsertRules(("id",)), batch)

        return replace(verb, name=f"batch {number}: {verb.name}", by_us=by_us, batch=number)

    def compact(self) -> Verb:
        num_rows = self.dice.choice([12, 1000])
        return Verb(
            f"compact to {num_rows}",
            lambda ds: ds.compact(num_rows),
            lambda ds: ds.optimize.compact_files(target_rows_per_fragment=num_rows),
            lambda _: Effect(),
        )

    def configure(self) -> Verb:
        entries = {self.dice.choice("pq"): str(self.dice.random())}

        def verb(ds: Any) -> None:
            ds.update_config(entries)

        return Verb(f"set {entries}", verb, verb, lambda _: Effect())

    def add_column(self) -> Verb:
        """By pylance only; of ours it is an append."""
        name = f"c{self.dice.randint(0, 10**6)}"
        appended = self.append()
        return replace(
            appended,
            name=f"{appended.name}, or add {name}",
            by_pylance=lambda ds: ds.add_columns(pa.field(name, pa.int64())),
            by_pylance_means=lambda _: Effect(),
        )

    def overwrite(self) -> Verb:
        new = [self.values(key) for key in self.new_keys(12)]
        rows = table_of(new)
        return Verb(
            "overwrite",
            lambda ds: ds.overwrite(rows),
            lambda ds: lance.write_dataset(rows, ds, mode="overwrite"),
            lambda _: Effect(added=new, replaces_all=True),
        )

    def restore(self) -> Verb:
        version = self.dice.randint(3, max(self.snapshots))
        return Verb(
            f"restore {version}",
            lambda ds: ds.restore(version),
            lambda ds: lance.LanceDataset.commit(
                self.uri, lance.LanceOperation.Restore(version), read_version=ds.version
            ),
            lambda _: Effect(restored=version),
        )

    def index(self) -> None:
        # None on the key: with one pylance's upserts do not say which keys they inserted, and two
        # of them insert one key twice.
        lance.dataset(self.uri).create_scalar_index("x", "BTREE")
        lance.dataset(self.uri).create_scalar_index("g", "BITMAP")

    # --- doing them

    def step(self) -> None:
        """Let a writer that is not in the middle of a verb do one, and check what it made."""
        who = self.dice.choice([writer for writer in WRITERS if writer not in self.busy])
        verb = self.verb()
        self.busy.add(who)
        planned_on = self.latest
        self.notes.append(f"{'  ' * len(self.busy)}{who}: {verb.name} at {planned_on}")
        try:
            made = self.by_pylance(verb) if who == "pylance" else self.by_us(verb)
        except (CommitConflictError, InvalidInputError, OSError) as error:
            is_conflict = isinstance(error, CommitConflictError)
            if not (is_conflict or re.search("conflict|ncompatible|while the rows", str(error))):
                raise
            self.notes.append(f"{'  ' * len(self.busy)}{who} gives up: {error}")
        else:
            self.look()
            self.notes.append(f"{'  ' * len(self.busy)}{who} made {made}")
            self.check(who, verb, planned_on, made)
        self.busy.discard(who)

    def others(self) -> None:
        for _ in range(self.dice.randint(1, 2)):
            if len(self.busy) < len(WRITERS):
                self.step()

    def by_us(self, verb: Verb) -> int | None:
        """Do a verb of ours, with others in the middle; return the version that it made."""
        call, end = self.dice.choice(STEPS)
        at = self.dice.randint(1, 3) if call == "list_names" else 1
        made: int | None = None

        def before(name: str, path: str) -> None:
            nonlocal at
            if name == call and path.endswith(end):
                at -= 1
                if at == 0:
                    self.others()

        def published(path: str) -> None:
            nonlocal made
            if path.endswith(".manifest"):
                made = self.latest

        table = open_newest(self.uri)
        store = TellingStore(table.store, before=before, created=published)
        verb.by_us(Dataset(replace(table, store=store, log=ObjectStoreLog(store))))
        return made

    def by_pylance(self, verb: Verb) -> int | None:
        stale = lance.dataset(self.uri)
        self.others()
        found = self.latest
        verb.by_pylance(stale)
        return self.latest if self.latest > found else None

    # --- the model

    def check(self, who: str, verb: Verb, planned_on: int, made: int | None) -> None:
        if verb.batch is not None and who != "pylance":
            assert (made is None) == (verb.batch in self.batches_in), f"batch {verb.batch}"
            self.batches_in.add(verb.batch)
            if made is None:
                return
        if made is None:
            effects = [self.effect(who, verb, each) for each in (planned_on, self.latest)]
            assert any(each.is_empty for each in effects), f"{verb.name} did nothing"
            return
        before = made - 1
        start, end = self.snapshots[before], self.snapshots[made]
        reasons = []
        for version in {planned_on, before}:
            effect, known = self.effect(who, verb, version), self.snapshots[version]
            if any(known[each] != start.get(each) for each in (*effect.gone, *effect.changed)):
                reasons.append(f"on {version} it would touch what others changed")
                continue
            reason = difference(end, self.applied(start, effect, made), made)
            if reason is None:
                return
            reasons.append(f"on {version}: {reason}")
        raise AssertionError(f"{verb.name} made version {made}: {reasons}")

    def effect(self, who: str, verb: Verb, version: int) -> Effect:
        meaning = verb.by_pylance_means if who == "pylance" else None
        return (meaning or verb.effect)(self.snapshots[version])

    def applied(self, start: Rows, effect: Effect, version: int) -> tuple[Rows, list[Values]]:
        """Return the rows that stay, and the values of those that come."""
        if effect.restored is not None:
            return self.snapshots[effect.restored], []
        stay = {} if effect.replaces_all else dict(start)
        for each in effect.gone:
            del stay[each]
        for each, values in effect.changed.items():
            stay[each] = Row(values, start[each].created, version)
        return stay, effect.added

    # --- in the end

    def finish(self) -> None:
        """Check what is costly once."""
        newest = lance.dataset(self.uri)
        newest.validate()
        assert lance_stream.open_dataset(self.uri).verify() == []
        for condition in ("x >= 1.0", "g = 1"):
            by_index, by_scan = (
                newest.scanner(filter=condition, columns=["id"], use_scalar_index=each).to_table()
                for each in (True, False)
            )
            assert sorted(by_index["id"].to_pylist()) == sorted(by_scan["id"].to_pylist())
        self.check_law(min(self.snapshots), max(self.snapshots))
        self.check_law(self.dice.choice(sorted(self.snapshots)), max(self.snapshots))

    def check_law(self, after: int, through: int) -> None:
        rows = dict(self.snapshots[after])
        ds = lance_stream.open_dataset(self.uri)
        for change in ds.changes(after, through, pre_images=False).read_all().to_pylist():
            row_id = change["_rowid"]
            if change["_change_type"] == "delete":
                del rows[row_id]
                continue
            values = tuple(change[name] for name in SCHEMA.names)
            assert (row_id in rows) == (change["_change_type"] == "update_postimage")
            rows[row_id] = Row(values, *(change[name] for name in STAMPS))
        assert rows == self.snapshots[through]


def upserted(rows: Rows, new: list[Values], doomed: set[int]) -> Effect:
    ids = {row.values[0]: each for each, row in rows.items()}
    return Effect(
        gone={ids[key] for key in doomed if key in ids},
        changed={ids[each[0]]: each for each in new if each[0] in ids},
        added=[each for each in new if each[0] not in ids],
    )


def difference(found: Rows, expected: tuple[Rows, list[Values]], version: int) -> str | None:
    """Say how rows differ from those that are expected; None if they do not."""
    stay, added = expected
    for each, row in stay.items():
        if found.get(each) != row:
            return f"row {each} is {found.get(each)}, not {row}"
    new = [row for each, row in found.items() if each not in stay]
    if Counter(row.values for row in new) != Counter(added):
        return f"new are {[row.values for row in new]}, not {added}"
    if any((row.created, row.updated) != (version, version) for row in new):
        return f"the stamps of new rows are not {version}: {new}"
    return None


class WithHiddenLineage(ThreeWriters):
    """A table whose lineage goes into hidden columns of data files, where it can."""

    config: Mapping[str, str] = HIDDEN_LINEAGE


def run(seed: int, num_steps: int, kind: type[ThreeWriters] = ThreeWriters) -> int:
    """Make one history and check it; return how many versions it has."""
    return max(histories.run(kind, seed, num_steps).snapshots)


def play(seed: int, num_steps: int) -> dict[str, int]:
    """Make a history, and count its versions."""
    kind = (ThreeWriters, WithHiddenLineage)[seed % 2]
    return {f"versions, {kind.__name__}": run(seed, num_steps, kind)}


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=25, what="verbs"))
