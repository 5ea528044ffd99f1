"""What a dimension holds for a log of changes: a model that sorts the whole log, key by key."""

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

CHANGES = pa.schema(
    [
        ("id", pa.int64()),
        ("city", pa.string()),
        ("note", pa.string()),
        ("seq", pa.int64()),
        ("op", pa.string()),
    ]
)
"""The columns of a batch of changes."""


class Change(NamedTuple):
    """One change; `op` is "u" or "d"."""

    id: int
    city: str | None
    note: str | None
    seq: int
    op: str


class State(NamedTuple):
    """One row of a history."""

    id: int
    city: str | None
    note: str | None
    start: int
    end: int | None


def batch_of(changes: Iterable[Change]) -> pa.Table:
    """Return changes as a table."""
    return pa.Table.from_pylist([change._asdict() for change in changes], schema=CHANGES)


def effective(log: Iterable[Change]) -> dict[int, list[Change]]:
    """Return the changes of each key that count, in order: of equal sequences, a delete."""
    by_sequence: dict[tuple[int, int], Change] = {}
    for change in log:
        earlier = by_sequence.get((change.id, change.seq))
        if earlier is None or earlier.op != "d":
            by_sequence[change.id, change.seq] = change
    ordered: dict[int, list[Change]] = {}
    for key in sorted(by_sequence):
        ordered.setdefault(key[0], []).append(by_sequence[key])
    return ordered


def history(log: Iterable[Change], tracked: Sequence[str] = ("city", "note")) -> list[State]:
    """Return the rows of a history (type 2)."""
    rows: list[State] = []
    for changes in effective(log).values():
        current: State | None = None
        for change in changes:
            if current is not None and change.op == "u" and _same(current, change, tracked):
                current = current._replace(city=change.city, note=change.note)
                continue
            if current is not None:
                rows.append(current._replace(end=change.seq))
            current = State(change.id, change.city, change.note, change.seq, None)
            if change.op == "d":
                current = None
        if current is not None:
            rows.append(current)
    return sorted(rows, key=lambda row: (row.id, row.start))


def _same(state: State, change: Change, tracked: Sequence[str]) -> bool:
    return all(getattr(state, name) == getattr(change, name) for name in tracked)


def current(log: Iterable[Change]) -> list[tuple[int, str | None, str | None]]:
    """Return the current row of each key (type 1)."""
    last = [changes[-1] for _, changes in sorted(effective(log).items())]
    return [(change.id, change.city, change.note) for change in last if change.op == "u"]


def random_log(chance: random.Random, num_keys: int = 4, maximum: int = 12) -> list[Change]:
    """Return changes of some keys: with runs of equal values, deletes, repeats and ties."""
    log: list[Change] = []
    for key in range(num_keys):
        for seq in chance.sample(range(40), chance.randint(1, maximum)):
            if chance.random() < 0.25:
                log.append(Change(key, None, None, seq, "d"))
                continue
            city = chance.choice(["Ulm", "Bonn", None])
            log.append(Change(key, city, chance.choice("xy"), seq, "u"))
            if chance.random() < 0.1:  # a delete at the same moment wins
                log.append(Change(key, None, None, seq, "d"))
    return log + chance.sample(log, len(log) // 5)


def in_batches(chance: random.Random, log: Sequence[Change]) -> list[list[Change]]:
    """Return a log, shuffled, cut into batches; now and then one is repeated."""
    shuffled = chance.sample(list(log), len(log))
    num_batches = chance.randint(1, 6)
    cuts = sorted(chance.randint(0, len(log)) for _ in range(num_batches - 1))
    batches = [
        shuffled[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(log)], strict=True)
    ]
    return [again for batch in batches for again in [batch] * (1 + (chance.random() < 0.1))]


def states(rows: pa.Table) -> list[State]:
    """Return the rows of a table that holds a history."""
    stored = [
        State(row["id"], row["city"], row["note"], row["__START_AT"], row["__END_AT"])
        for row in rows.to_pylist()
    ]
    return sorted(stored, key=lambda row: (row.id, row.start))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table of type 1, by key."""
    rows = [(row["id"], row["city"], row["note"]) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: row[0])
