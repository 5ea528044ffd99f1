"""Micro-batches of streams, in the sink's modes, without Spark; and their replays.

The ledger has each batch once: a batch that comes again, in the same process or after a crash,
changes nothing, whatever has happened since.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.large.staged_rows import RANGE_THREADS
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from lance_stream.verbs.overwrite import overwrite
from tests.histories.life import Build, Life, Line, unchanged
from tests.histories.model import KEY, State
from tests.histories.steps import Choices, DoesNotFit, action
from tests.keys.index.small_runs import restart
from tests.upsert.large.running_parts import RangeProcesses, upsert_by_parts, upsert_staged_rows


class Threads(type(RANGE_THREADS)):  # type: ignore[misc]  # a class, as mypy cannot know
    """Threads of a process that may die, and then leaves staged files behind."""

    repeats = 2


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
    "upsert by tasks": lambda table, rows, batch: upsert_staged_rows(
        table, rows, RULES, micro_batch=batch, workers=RangeProcesses(repeats=2)
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
            return life.inserted(State(state.columns), rows, at)
        return life.upserted(state, rows, at)

    is_overwrite = mode == "overwrite"
    write_batch(line, choose, micro_batch, MODES[mode], data, build, is_overwrite=is_overwrite)
    batches[app_id] = (number, mode, data, micro_batch)


def write_batch(
    line: Line,
    choose: Choices,
    micro_batch: PendingBatch,
    write: Write,
    data: pa.Table,
    build: Build,
    *,
    is_overwrite: bool,
) -> None:
    """Write a batch, and if the process dies meanwhile, once more: then it is there once."""
    before = line.newest

    def twin() -> None:
        line.life.second_process.run(lambda ds: write(ds.table, data, micro_batch), line.uri)
        line.advance(build, may_stay=True, look=False)

    line.twin = twin
    line.write(
        choose,
        lambda ds: write(ds.table, data, micro_batch),
        build,
        rivals=("configure",)
        if is_overwrite
        else ("configure", "compact", "delete", "twin", "twin"),
        is_planned_on_handle=True,
    )
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
        lambda ds: upsert_by_parts(ds.table, data, RULES, num_parts=num_parts, repeats=2),
        lambda state, at: life.upserted(state, rows, at),
        rivals=("configure", "delete"),
    )


@action(weight=2)
def ordered_upsert(life: Life, choose: Choices) -> None:
    """Upserts rows in the order of a column, with deletes and rows that come twice.

    Of each key the newest row counts, and nothing that is older than the stored row. What is not
    stored of a row, such as its position in the log that it comes from, does not matter.
    """
    line = life.line(choose)
    now = line.now
    name = choose.one_of("sequence", [c.name for c in now.columns if c.kind == "int64"])
    column = now.column(name)
    assert column is not None
    if any(row.values.get(column.ident) is None for row in now.rows.values()):
        raise DoesNotFit("rows without a sequence")

    def draw(dice: Any) -> list[Any]:
        events = []
        keys = life.draw_keys(dice, 6) + life.draw_new_keys(dice, 3)
        for key in keys:
            for sequence in dice.sample(range(150), dice.choice([1, 1, 2])):
                values = {**life.draw_values(now.columns, dice), name: sequence}
                word = "d" if dice.random() < 0.25 else "u"
                events += [[key, word, values]] * dice.choice([1, 1, 1, 2])
        dice.shuffle(events)
        return events

    events = choose("events", draw)
    last: dict[int, tuple[int, str, dict[str, Any]]] = {}
    stored: dict[tuple[int, int], Any] = {}
    for key, word, values in events:
        life.fitting_rows(now, {key: values})
        if not isinstance(values.get(name), int) or values.keys() != {*now.names}:
            raise DoesNotFit("an event")
        event = word, values if word == "u" else None
        if stored.setdefault((key, values[name]), event) != event:
            raise DoesNotFit("two events at once")
        if key not in last or values[name] > last[key][0]:
            last[key] = values[name], word, values
    if not events:
        raise DoesNotFit("no events")
    offset = choose("offset", lambda dice: dice.randrange(1000))
    table = pa.concat_tables([now.table({key: values}) for key, _, values in events])
    table = table.append_column("op", pa.array([word for _, word, _ in events]))
    table = table.append_column("offset", pa.array(range(offset, offset + len(events))))

    def build(state: State, at: int) -> State:
        rows, removed = {}, set()
        for key, (sequence, word, values) in last.items():
            row = state.rows.get(key)
            if row is not None and row.values[column.ident] > sequence:
                continue
            if word == "d":
                removed.add(key)
            else:
                rows[key] = values
        return life.upserted(state.without(removed), rows, at)

    rules = {
        "on": KEY,
        "sequence_by": name,
        "delete_when": "op = 'd'",
        "except_columns": ["op", "offset"],
    }
    way = choose("way", lambda dice: dice.choice(["upsert", "upsert", "parts"]))

    def ours(ds: Any) -> object:
        if way == "upsert":
            return ds.upsert(table, **rules)
        return upsert_by_parts(
            ds.table, table, UpsertRules((KEY,), name, "op = 'd'", ("op", "offset")), repeats=2
        )

    line.write(choose, ours, build, rivals=("configure", "compact"))
