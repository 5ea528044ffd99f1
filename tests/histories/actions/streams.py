"""Micro-batches of streams, in the sink's modes, without Spark; and their replays.

The ledger has each batch once: a batch that comes again, in the same process or after a crash,
changes nothing, whatever has happened since.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_stream.keys.index.shared_index import shared_index
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.large.staged_rows import RANGE_THREADS
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from lance_stream.verbs.overwrite import overwrite
from tests.histories.life import Build, Life, Line, unchanged
from tests.histories.model import KEY, State
from tests.histories.steps import Choices, DoesNotFit, action
from tests.histories.trouble import DiedError, dying
from tests.keys.index.small_runs import restart
from tests.upsert.large.running_parts import RangeProcesses, upsert_staged_rows


class Threads(type(RANGE_THREADS)):  # type: ignore[misc]  # a class, as mypy cannot know
    """Threads of a process that may die, and then leaves staged files behind."""

    repeats = 2


class DyingTasks(RangeProcesses):
    """Processes ranges like Spark's tasks: some attempts die, and some count although another did.

    Args:
        dice: Draws which.
    """

    def __init__(self, dice: random.Random) -> None:
        super().__init__(repeats=2)
        self._dice = dice

    def _call(self, function: Callable[..., object], item: object) -> object:
        while self._dice.random() < 0.2:
            with (
                suppress(DiedError),
                dying(self._dice.randrange(1, 12), done=self._dice.random() < 0.5),
            ):
                super()._call(function, item)
        return super()._call(function, item)


def upsert_by_tasks(
    table: TableVersion,
    rows: pa.Table,
    rules: UpsertRules,
    *,
    num_parts: int = 3,
    micro_batch: PendingBatch | None = None,
) -> UpsertResult:
    """Upsert a table of rows as the tasks of a cluster do, of which attempts die."""
    return upsert_staged_rows(
        table,
        rows,
        rules,
        num_parts=num_parts,
        micro_batch=micro_batch,
        workers=DyingTasks(random.Random(rows.num_rows)),
        seed=shared_index(table, rules.on).seeds[0],
    )


Write = Callable[[TableVersion, pa.Table, PendingBatch], object]
RULES = UpsertRules((KEY,))

MODES: dict[str, Write] = {
    "append": lambda table, rows, batch: append(table, rows, batch),
    "overwrite": lambda table, rows, batch: overwrite(table, rows, batch),
    "upsert": lambda table, rows, batch: upsert(table, rows, RULES, batch),
    "staged upsert": lambda table, rows, batch: upsert_staged_rows(
        table,
        rows,
        RULES,
        num_parts=1 + rows.num_rows % 3,
        micro_batch=batch,
        workers=Threads(),
    ),
    "upsert by tasks": lambda table, rows, batch: upsert_by_tasks(
        table, rows, RULES, micro_batch=batch
    ),
}


@action(weight=3)
def batch(life: Life, choose: Choices) -> None:
    """The next micro-batch of a stream."""
    line = life.line(choose)
    now = line.now
    mode = choose("mode", lambda dice: dice.choices([*MODES], [3, 0.4, 3, 1, 0.5])[0])
    app_id = choose("app", lambda dice: dice.choice(["x", "y"]))
    app_id = f"{app_id} {line.name} {line.memory.get('streams', 0)}"

    def draw(dice: Any) -> dict[int, Any]:
        keys = life.draw_new_keys(dice, 4) + ([] if mode == "append" else life.draw_keys(dice))
        return {key: life.draw_values(now.columns, dice) for key in keys}

    drawn = choose("rows", draw)
    rows = (life.fitting_new_rows if mode == "append" else life.fitting_rows)(now, drawn)
    required = {column.name for column in now.columns if column.is_required}
    if not rows or any(not required <= values.keys() for values in rows.values()):
        raise DoesNotFit("rows")
    data = now.table(rows)
    batches = line.memory.setdefault("batches", {})
    number = batches[app_id][0] + 1 if app_id in batches else 0
    micro_batch = PendingBatch.of(app_id, number, "query", digest=digest_of(data))

    def build(state: State, at: int) -> State:
        if mode == "append":
            return life.inserted(state, rows, at)
        if mode == "overwrite":
            return life.inserted(replace(state, rows={}, columns=state.row_columns), rows, at)
        return life.upserted(state, rows, at)

    rivals = ["configure", *([] if mode == "overwrite" else ["compact", "delete", "twin", "twin"])]
    if mode not in ("overwrite", "upsert by tasks"):  # attempts that die leave files in any table
        rivals.append("replace")
    write_batch(line, choose, micro_batch, MODES[mode], data, build, rivals)
    if _is_last(line, micro_batch):
        batches = line.memory.setdefault("batches", {})
        batches[app_id] = (number, mode, data, micro_batch)


def write_batch(
    line: Line,
    choose: Choices,
    micro_batch: PendingBatch,
    write: Write,
    data: pa.Table,
    build: Build,
    rivals: list[str],
) -> None:
    """Write a batch, and if the process dies meanwhile, once more: then it is there once.

    Where another table takes the place of this one, the batch is not repeated.
    """
    before, memory = line.newest, line.memory

    def twin() -> None:
        line.life.second_process.run(lambda ds: write(ds.table, data, micro_batch), line.uri)
        line.advance(build, may_stay=True, look=False)

    line.twin = twin
    line.write(
        choose,
        lambda ds: write(ds.table, data, micro_batch),
        build,
        rivals=rivals,
        is_planned_on_handle=True,
    )
    if line.memory is not memory:
        return
    if choose.recorded["by"][0] in ("dies", "beaten") and not _is_last(line, micro_batch):
        assert line.newest <= before + 1
        write(line.ours().table, data, micro_batch)
        line.advance(build)
    assert _is_last(line, micro_batch), "the ledger does not have the batch"


def _is_last(line: Line, micro_batch: PendingBatch) -> bool:
    entry = line.ours().ledger().get(micro_batch.batch.app_id)
    return entry is not None and entry.batch_id == micro_batch.batch.batch_id


@action(weight=1.5)
def replay_batch(life: Life, choose: Choices) -> None:
    """The last batch of a stream comes again; nothing happens."""
    line = life.line(choose)
    batches = line.memory.get("batches", {})
    app_id = choose.one_of("app", sorted(batches))
    if choose.happens("restart", 0.5):
        restart()
    _, mode, data, micro_batch = batches[app_id]
    MODES[mode](line.ours().table, data, micro_batch)
    line.advance(unchanged, may_stay=True)
    assert line.newest == line.ours().version


@action(weight=0.4)
def large_upsert(life: Life, choose: Choices) -> None:
    """Upserts many rows as the tasks of a cluster do, each in a process of its own."""
    line = life.line(choose)
    now = line.now

    def draw(dice: Any) -> dict[int, Any]:
        keys = life.draw_keys(dice, 30) + life.draw_new_keys(dice, 3)
        return {key: life.draw_values(now.columns, dice) for key in keys}

    rows = life.fitting_rows(now, choose("rows", draw))
    required = {column.name for column in now.columns if column.is_required}
    if not rows or any(not required <= values.keys() for values in rows.values()):
        raise DoesNotFit("rows")
    data = now.table(rows)
    num_parts = choose("parts", lambda dice: dice.randint(2, 5))
    line.write(
        choose,
        lambda ds: upsert_by_tasks(ds.table, data, RULES, num_parts=num_parts),
        lambda state, at: life.upserted(state, rows, at),
        rivals=("configure", "delete"),
    )


LSN = "lsn"
"""The name of a sequence that no column of the table stores."""

Event = list[Any]
"""A key, its sequence, whether it is deleted, and its values."""


@action(weight=3)
def upsert_events(life: Life, choose: Choices) -> None:
    """Upserts rows in the order of a sequence, or in none, with deletes, and rows that come twice.

    Of each key the newest row counts, and nothing that is older than the stored row or than a
    remembered delete. What is not stored of a row, such as its position in the log that it comes
    from, does not matter.
    """
    line = life.line(choose)
    now = line.now
    stored_sequences = [column.name for column in now.columns if column.kind == "int64"]
    name = choose.one_of("sequence", [*stored_sequences, LSN, LSN, ""])
    column = now.column(name)
    if column is not None and any(r.values.get(column.ident) is None for r in now.rows.values()):
        raise DoesNotFit("rows without a sequence")
    remembers = bool(name) and choose.happens("tombstones", 0.7)
    if remembers and now.deletes_by not in ("", name):
        raise DoesNotFit("deletes by another sequence")

    def draw(dice: random.Random) -> list[Event]:
        events: list[Event] = []
        keys = life.draw_keys(dice, 6) + life.draw_new_keys(dice, 3)
        for key in keys:
            num_sequences = dice.choice([1, 1, 2]) if name else 1
            for sequence in dice.sample(range(150), num_sequences):
                values = life.draw_values(now.columns, dice)
                if column is not None:
                    values[name] = sequence
                event = [key, sequence, dice.random() < 0.25, values]
                events += [event] * (dice.choice([1, 1, 1, 2]) if name else 1)
        dice.shuffle(events)
        return events

    events = choose("events", draw)
    last = newest_events(events, has_order=bool(name))
    for key, sequence, _, values in events:
        life.fitting_rows(now, {key: values})
        if values.keys() != {*now.row_names} or (column is not None and values[name] != sequence):
            raise DoesNotFit("an event")
    offset = choose("offset", lambda dice: dice.randrange(1000))
    table = pa.concat_tables([now.table({key: values}) for key, _, _, values in events])
    extra_columns = {
        "op": pa.array(["d" if is_delete else "u" for _, _, is_delete, _ in events]),
        "offset": pa.array(range(offset, offset + len(events))),
        **({LSN: pa.array([event[1] for event in events])} if name == LSN else {}),
    }
    for extra, values in extra_columns.items():
        table = table.append_column(extra, values)

    def build(state: State, at: int) -> State:
        rows, removed, deletes = {}, set(), dict(state.deletes)
        for key, (_, sequence, is_delete, values) in last.items():
            row = state.rows.get(key)
            if name == state.deletes_by and sequence <= state.deletes.get(key, -1):
                continue
            if column is not None and row is not None and row.values[column.ident] > sequence:
                continue
            if is_delete:
                removed.add(key)
                if remembers:
                    deletes[key] = sequence
            else:
                rows[key] = values
        deletes_by = name if deletes and remembers else state.deletes_by
        remembering = replace(state.without(removed), deletes=deletes, deletes_by=deletes_by)
        return life.upserted(remembering, rows, at)

    rules = UpsertRules(
        (KEY,),
        name or None,
        "op = 'd'",
        tuple(extra_columns),
        tombstones=timedelta(days=9) if remembers else None,
    )
    way = choose("way", lambda dice: dice.choice([upsert, upsert, upsert_by_tasks]).__name__)
    run = upsert if way == "upsert" else upsert_by_tasks
    line.write(
        choose, lambda ds: run(ds.table, table, rules), build, rivals=("configure", "compact")
    )


def newest_events(events: list[Event], *, has_order: bool) -> dict[int, Event]:
    """Return the event of each key that counts; `DoesNotFit` if it is not known which."""
    last: dict[int, Event] = {}
    stored: dict[tuple[int, int], Any] = {}
    for event in events:
        key, sequence, is_delete, values = event
        effect = None if is_delete else values
        if stored.setdefault((key, sequence), effect) != effect:
            raise DoesNotFit("two events at once")
        if not has_order and key in last:
            raise DoesNotFit("a key that occurs twice")
        if key not in last or sequence > last[key][1]:
            last[key] = event
    if not events:
        raise DoesNotFit("no events")
    return last


@action(weight=0.4)
def damage_key_index(life: Life, choose: Choices) -> None:
    """Runs of the key index are lost, cut or changed: upserts do without them."""
    line = life.line(choose)
    seed = choose("seed", lambda dice: dice.randrange(1000))
    dice = random.Random(seed)
    for path in sorted(Path(line.uri).glob("_lance_stream/key_index/*")):
        how, data = dice.randrange(4), bytearray(path.read_bytes())
        if how == 0 or not data:
            path.unlink()
        elif how == 1:
            path.write_bytes(data[: dice.randrange(len(data))])
        elif how == 2:
            data[dice.randrange(len(data))] ^= 8
            path.write_bytes(data)
        life.counts["runs of the key index damaged"] += how < 3
