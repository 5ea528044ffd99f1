"""Verbs that change rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_stream
from lance_stream.dataset import Dataset
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert as upsert_rows
from lance_stream.verbs.jobs import commit_job, plan_job
from lance_stream.write.fragments import write_fragments
from tests.histories.actions.streams import upsert_by_tasks
from tests.histories.lancedb_tables import HAS_LANCEDB
from tests.histories.life import OTHERS, Life, Line, in_list, merge_all, unchanged
from tests.histories.model import ALL_KINDS, KEY, SPECIAL_KINDS, State, kinds_in_place_of
from tests.histories.steps import Choices, DoesNotFit, action

FORMS = {
    "insert only": ("ignore", "insert"),
    "insert some": ("ignore", f"source.{KEY} % 2 = 0"),
    "update only": ("update", "ignore"),
    "conditional": ("a condition", "insert"),
    "conditional update only": ("a condition", "ignore"),
}
"""Merges: what happens to rows that match, and to those that do not."""

HIDDEN_LINEAGE = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "9"}


@action(weight=0)
def create(life: Life, choose: Choices) -> None:
    """The first step of each life."""
    life.is_stable = not choose.happens("unstable", 0.15)
    life.file_version = choose("file_version", lambda dice: dice.choice(["2.0", "2.1", "2.2"]))
    columns = choose("columns", life.draw_columns)
    is_hidden = choose.happens("hidden_lineage", 0.2)
    life.has_lancedb = HAS_LANCEDB and not is_hidden  # which LanceDB 0.40 cannot read
    config = HIDDEN_LINEAGE if is_hidden else {}
    line = Line(life, str(Path(life.folder) / "t.lance"))
    if any(kind not in life.kinds() for _, kind in columns):
        raise DoesNotFit("file version")
    empty = life.new_state(columns)
    rows = choose("rows", lambda dice: life.draw_new_rows(empty, dice, 12))
    rows = life.fitting_new_rows(empty, rows)
    data = empty.table(rows)
    way = choose("way", lambda dice: dice.choice(["empty", "rows", "pylance"]))

    def full(_state: State, at: int) -> State:
        return life.inserted(empty, rows, at)

    if way == "pylance":
        lance.write_dataset(
            data,
            line.root,
            max_rows_per_file=7,
            enable_stable_row_ids=life.is_stable,
            data_storage_version=life.file_version,
        )
    else:
        lance_stream.create_dataset(
            line.root,
            empty.schema if way == "empty" else data,
            life.file_version,
            stable_row_ids=life.is_stable,
            config=config,
        )
    life.lines.append(line)
    if way == "empty":
        line.advance(lambda _state, _at: empty)
        line.ours().append(data)
    line.advance(full)
    if way == "pylance" and config:
        line.pylance().update_config(config)
        line.advance(unchanged)


@action(weight=5)
def append(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    rows = choose("rows", lambda dice: life.draw_new_rows(line.now, dice))
    rows = life.fitting_new_rows(line.now, rows)
    data = line.now.table(rows)
    is_by_job = choose.happens("by_job", 0.2)  # which opens the table itself
    verb = append_by_job if is_by_job else Dataset.append
    line.write(
        choose,
        lambda ds: verb(ds, data),
        lambda state, at: life.inserted(state, rows, at),
        pylance=lambda ds: lance.write_dataset(data, ds, mode="append"),
        lancedb=lambda table: table.add(data),
        duckdb=lambda table: table.insert([KEY, *line.now.names], data),
        rivals=("delete", "configure", "compact", "drop", *([] if is_by_job else ["replace"])),
    )


def append_by_job(ds: Dataset, data: pa.Table) -> None:
    """Append rows as a batch job of Spark does, whose tasks write between plan and commit."""
    job = plan_job(ds.uri, data.schema)
    commit_job(job, write_fragments(data.to_batches(), job.target))


@action(weight=2)
def append_many(life: Life, choose: Choices) -> None:
    """Appends rows one by one: many small fragments."""
    line = life.line(choose)
    rows = choose("rows", lambda dice: life.draw_new_rows(line.now, dice, 5))
    for key, values in life.fitting_new_rows(line.now, rows).items():
        line.ours().append(line.now.table({key: values}))
        line.advance(lambda state, at: life.inserted(state, {key: values}, at), look=False)  # noqa: B023  # called at once


@action(weight=5)
def upsert(life: Life, choose: Choices) -> None:
    """Updates some rows and inserts others, mostly with all columns, else with some."""
    line = life.line(choose)
    now = line.now
    column_names = [column.name for column in now.plain_columns]
    names = choose(
        "names",
        lambda dice: (
            now.row_names
            if dice.random() < 0.6
            else dice.sample(column_names, dice.randint(0, len(column_names)))
        ),
    )

    def draw(dice: Any) -> dict[int, Any]:
        keys = life.draw_keys(dice, 8)
        if dice.random() < 0.5:
            keys += life.draw_new_keys(dice, 3)
        columns = [column for column in now.columns if column.name in names]
        repeated = [key for key in keys if key in now.rows and dice.random() < 0.4]
        stored = {key: now.values_by_name(now.rows[key]) for key in repeated}
        return {
            key: {column.name: stored[key][column.name] for column in columns}
            if key in stored
            else life.draw_values(columns, dice)
            for key in keys
        }

    rows = life.fitting_rows(now, choose("rows", draw))
    if not rows:
        raise DoesNotFit("no rows")
    required = {c.name for c in now.columns if c.is_required}
    lacks = any(not required <= values.keys() for values in rows.values())
    if lacks and not rows.keys() <= now.rows.keys():
        raise DoesNotFit("a required column")
    skips = choose.happens("skip_unchanged", 0.4)
    data = now.table(rows, names)

    def build(state: State, at: int) -> State:
        changed = rows
        if skips:
            changed = {
                key: values
                for key, values in rows.items()
                if key not in state.rows
                or {**state.values_by_name(state.rows[key]), **values}
                != state.values_by_name(state.rows[key])
            }
        return life.upserted(state, changed, at)

    rules = UpsertRules((KEY,), skip_unchanged=skips)
    run = upsert_by_tasks if choose.happens("by_tasks", 0.15) else upsert_rows
    is_whole = set(names) == set(now.row_names)
    rivals = ["configure", "compact", *(["replace"] if run is upsert_rows else [])]
    if not lacks:
        rivals += ["delete", "update", "upsert"]
        rivals += [] if skips else ["drop"]  # a row may differ in the dropped column alone
    line.write(
        choose,
        lambda ds: run(ds.table, data, rules),
        build,
        pylance=(lambda table: merge_all(table, data)) if is_whole and not skips else None,
        lancedb=(lambda table: merge_all(table, data)) if is_whole and not skips else None,
        rivals=rivals,
    )


@action(weight=2)
def merge(life: Life, choose: Choices) -> None:
    """Inserts only, updates only, or updates on a condition over both rows."""
    line = life.line(choose)
    now = line.now
    form = choose.one_of("form", [*FORMS])
    columns = now.columns
    numbers = [column.name for column in columns if ALL_KINDS[column.kind].is_number]
    is_conditional = FORMS[form][0] == "a condition"
    compared = KEY
    if is_conditional:
        compared = choose("compared", lambda dice: dice.choice([KEY, *numbers]))
    column = now.column(compared)
    if compared not in [KEY, *numbers]:
        raise DoesNotFit(compared)
    if column is None:
        condition = f"source.{KEY} + target.{KEY} > 20"
    else:
        condition = f"source.{compared} > target.{compared} AND source.{KEY} IS NOT NULL"

    def draw(dice: Any) -> dict[int, Any]:
        keys = [*life.draw_keys(dice, 8), *life.draw_new_keys(dice, 3)]
        return {key: life.draw_values(columns, dice) for key in keys}

    rows = life.fitting_rows(now, choose("rows", draw))
    if not rows:
        raise DoesNotFit("no rows")
    data = now.table(rows)

    def build(state: State, at: int) -> State:
        def holds(key: int) -> bool:
            if column is None:
                return key > 10
            new, old = rows[key].get(compared), state.rows[key].values.get(column.ident)
            return new is not None and old is not None and bool(new > old)

        def counts(key: int) -> bool:
            if key not in state.rows:
                return FORMS[form][1] == "insert" or (form == "insert some" and key % 2 == 0)
            return form == "update only" or (is_conditional and holds(key))

        return life.upserted(state, {key: rows[key] for key in rows if counts(key)}, at)

    def by_others(ds: Any, keyword: str) -> None:
        builder = ds.merge_insert(KEY)
        if FORMS[form][0] != "ignore":
            where = {keyword: condition} if is_conditional else {}
            builder = builder.when_matched_update_all(**where)
        if FORMS[form][1] == "insert":
            builder = builder.when_not_matched_insert_all()
        builder.execute(data)

    matched = condition if is_conditional else FORMS[form][0]
    rules = UpsertRules((KEY,), when_matched=matched, when_not_matched=FORMS[form][1])
    run = upsert_by_tasks if choose.happens("by_tasks", 0.2) else upsert_rows
    rivals = ["configure", "compact", "delete", "update"]
    rivals += ["drop"] if column is None else []  # of the compared column
    if (
        FORMS[form][1] != "ignore"
    ):  # rows that others insert meanwhile are not updated, as by an update
        rivals.append("upsert")
    line.write(
        choose,
        lambda ds: run(ds.table, data, rules),
        build,
        pylance=None if form == "insert some" else lambda ds: by_others(ds, "condition"),
        lancedb=None if form == "insert some" else lambda table: by_others(table, "where"),
        rivals=rivals,
    )


@action(weight=3)
def delete(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    where = choose(
        "where",
        lambda dice: (
            dice.choice(
                [
                    life.draw_keys(dice),
                    life.draw_keys(dice),
                    life.draw_keys(dice, 20),
                    "all",
                    "none",
                ]
            )
            if dice.random() < 0.8
            else dice.randrange(life.next_key + 1)
        ),
    )
    if isinstance(where, int):
        condition, keys = f"{KEY} < {where}", set(range(where))
    elif isinstance(where, list):
        condition, keys = in_list(where), set(where)
    else:
        condition = f"{KEY} >= 0" if where == "all" else f"{KEY} < 0"
        keys = set(range(life.next_key)) if where == "all" else set()
    truncates = where == "all" and choose.happens("truncates", 0.5)
    line.write(
        choose,
        lambda ds: ds.delete(condition),
        lambda state, _: state.without(keys),
        pylance=lambda ds: ds.truncate_table() if truncates else ds.delete(condition),
        lancedb=lambda table: table.delete(condition),
        rivals=("configure", "compact", "delete", "drop", "replace"),
    )


@action(weight=3)
def update(life: Life, choose: Choices) -> None:
    """Adds one to a column of numbers, and may set another column to null."""
    line = life.line(choose)
    numbers = [c.name for c in line.now.columns if ALL_KINDS[c.kind].is_number]
    name = choose.one_of("column", numbers)
    limit = choose("limit", lambda dice: dice.randint(0, life.next_key + 1))
    column = line.now.column(name)
    assert column is not None
    sql = {"int32": "INT", "int64": "BIGINT", "float32": "FLOAT", "float64": "DOUBLE"}
    where = f"{KEY} >= {limit}"
    values = {name: f"CAST({name} + 1 AS {sql[column.kind]})"}
    erased = [c.name for c in line.now.plain_columns if c.name != name and not c.is_required]
    if erased and choose.happens("erases", 0.3):
        values[choose.one_of("erased", erased)] = "NULL"

    def build(state: State, at: int) -> State:
        rows = {}
        for key, row in state.rows.items():
            if key >= limit:
                old = row.values.get(column.ident)
                rows[key] = {**dict.fromkeys(values), name: None if old is None else old + 1}
        return state.updated(rows, at)

    line.write(
        choose,
        lambda ds: ds.update(values, where=where),
        build,
        pylance=lambda ds: ds.update(values, where=where),
        lancedb=lambda table: table.update(where, values_sql=values),
        rivals=("configure", "compact", "delete", "replace"),
    )


@action(weight=2)
def move_keys(life: Life, choose: Choices) -> None:
    """Adds a number to all keys from a limit on, so that rows get the keys of other rows."""
    line = life.line(choose)
    limit = choose("limit", lambda dice: dice.choice([0, dice.randint(0, life.next_key)]))
    by_how_many = choose("plus", lambda dice: dice.choice([1, 1, 2]))

    def build(state: State, at: int) -> State:
        rows = {}
        for key, row in state.rows.items():
            if key >= limit:
                rows[key + by_how_many] = replace(row, touched=at)
            else:
                rows[key] = row
        return replace(state, rows=rows)

    life.use_keys(key + by_how_many for key in line.now.rows)
    change, where = {KEY: f"{KEY} + {by_how_many}"}, f"{KEY} >= {limit}"
    line.write(
        choose,
        lambda ds: ds.update(change, where=where),
        build,
        pylance=lambda ds: ds.update(change, where=where),
        lancedb=lambda table: table.update(where, values_sql=change),
        rivals=("configure", "compact"),
    )


@action(weight=1)
def overwrite(life: Life, choose: Choices) -> None:
    """Replaces all rows. The columns stay, get other metadata or kinds, or are other ones."""
    line = life.line(choose)
    now = line.now
    columns = choose(
        "columns",
        lambda dice: dice.choice(
            [
                [[c.name, c.kind, c.note] for c in now.plain_columns],
                [[c.name, c.kind, dice.choice(["", "n1", "n2"])] for c in now.plain_columns],
                [[c.name, dice.choice(kinds_in_place_of(c.kind)), ""] for c in now.plain_columns],
                [[*column, ""] for column in life.draw_columns(dice)],
            ]
        ),
    )
    if any(kind not in life.kinds() for _, kind, _ in columns):
        raise DoesNotFit("file version")
    empty = life.new_state([(name, kind) for name, kind, _ in columns])
    noted = zip(empty.columns, columns, strict=True)
    empty = State(tuple(replace(column, note=note) for column, (_, _, note) in noted))
    for column in empty.columns:
        before = now.column(column.name)
        if before is not None:
            if before.kind != column.kind and not SPECIAL_KINDS.keys().isdisjoint(
                (before.kind, column.kind)
            ):
                raise DoesNotFit("the feed may show one as the other")
            life.origins[column.ident] = before.ident

    def draw(dice: Any) -> dict[int, Any]:
        keys = life.draw_keys(dice, 4) + life.draw_new_keys(dice, 4)
        return {key: life.draw_values(empty.columns, dice) for key in keys}

    rows = life.fitting_rows(empty, choose("rows", draw))
    data = empty.table(rows)

    def build(state: State, at: int) -> State:
        new = life.inserted(
            replace(empty, deletes=state.deletes, deletes_by=state.deletes_by), rows, at
        )
        is_same = [(c.name, c.kind) for c in state.columns] == [
            (c.name, c.kind) for c in new.columns
        ]
        if not is_same or choose.recorded["by"][0] in OTHERS:
            return new
        # we keep what rows of the same columns do not declare
        pairs = zip(new.columns, state.columns, strict=True)
        return replace(new, columns=tuple(replace(c, note=c.note or old.note) for c, old in pairs))

    line.write(
        choose,
        lambda ds: ds.overwrite(data),
        build,
        pylance=lambda ds: lance.write_dataset(data, ds, mode="overwrite"),
        lancedb=lambda table: table.add(data, mode="overwrite"),
        rivals=("configure", "compact", "delete", "replace"),
    )
