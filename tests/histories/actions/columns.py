"""Verbs that change columns."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.histories.life import OTHERS, Life, unchanged
from tests.histories.model import ALL_KINDS, KEY, NAMES, Column, State
from tests.histories.steps import Choices, DoesNotFit, action

RIVALS = ("configure", "delete")


@action(weight=1)
def add_empty_column(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    name = choose.one_of("name", [name for name in NAMES if line.now.column(name) is None])
    kind = choose.one_of("kind", [k for k in life.kinds() if k != "uuid"])
    column = Column(life.ident(), name, kind)
    line.write(
        choose,
        lambda ds: ds.add_columns(column.arrow),
        lambda state, _: replace(state, columns=(*state.columns, column)),
        pylance=lambda ds: ds.add_columns(column.arrow),
        lancedb=lambda table: table.add_columns(column.arrow),
        rivals=RIVALS,
    )


@action(weight=1)
def note_column(life: Life, choose: Choices) -> None:
    """Metadata of a column, beside those of the table: a version that changes no row."""
    line = life.line(choose)
    name = choose.one_of("name", [column.name for column in line.now.plain_columns])
    note = choose("note", lambda dice: dice.choice(["", "euros", "ü"]))
    number = line.newest

    def build(state: State, _at: int) -> State:
        columns = [replace(c, note=note) if c.name == name else c for c in state.columns]
        return replace(state, columns=tuple(columns))

    def by_pylance(ds: Any) -> None:
        ds.update_field_metadata({name: {"note": note or None}})

    def by_lancedb(table: Any) -> None:
        table.update_field_metadata({"path": name, "metadata": {"note": note or None}})

    line.write(
        choose,
        lambda ds: ds.update_metadata(
            {"number": str(number)}, fields={name: {"note": note or None}}
        ),
        build,
        pylance=by_pylance,
        lancedb=by_lancedb,
        rivals=RIVALS,
    )


@action(weight=1.5)
def add_computed_column(life: Life, choose: Choices) -> None:
    """A column computed from the key: each fragment gets a second data file."""
    line = life.line(choose)
    name = choose.one_of("name", [name for name in NAMES if line.now.column(name) is None])
    plus = choose("plus", lambda dice: dice.randrange(9))
    ident = life.ident()

    def build(state: State, at: int) -> State:
        is_required = not line.ours().schema.field(name).nullable
        column = Column(ident, name, "int64", is_required)
        rows = {
            key: replace(
                row,
                values={**row.values, ident: key + plus},
                filled=at,
            )
            for key, row in state.rows.items()
        }
        return replace(state, columns=(*state.columns, column), rows=rows)

    line.write(
        choose,
        lambda ds: ds.add_columns({name: f"{KEY} + {plus}"}),
        build,
        pylance=lambda ds: ds.add_columns({name: f"NULLIF({KEY} + {plus}, -1)"}),
        lancedb=lambda table: table.add_columns({name: f"NULLIF({KEY} + {plus}, -1)"}),
        rivals=("configure",),
    )


@action(weight=1)
def drop_column(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    free = line.columns_to_drop()
    if len(line.now.plain_columns) < 2:
        raise DoesNotFit("the last column")
    name = choose.one_of("name", free)
    line.write(
        choose,
        lambda ds: ds.drop_columns(name),
        lambda state, _: state.without_column(name),
        pylance=lambda ds: ds.drop_columns([name]),
        lancedb=lambda table: table.drop_columns([name]),
        rivals=RIVALS,
    )


@action(weight=1)
def rename_columns(life: Life, choose: Choices) -> None:
    """Renames a column, or lets two columns change their names."""
    line = life.line(choose)
    deletes_by = line.now.deletes_by
    fixed = {deletes_by, *line.now.computed_from}
    names = [column.name for column in line.now.plain_columns if column.name not in fixed]
    first = choose.one_of("name", names)
    others = [name for name in NAMES if name not in {first, *fixed}]
    new = choose.one_of("to", others)
    mapping = {first: new, new: first} if new in names else {first: new}

    def build(state: State, _at: int) -> State:
        columns = [replace(c, name=mapping.get(c.name, c.name)) for c in state.columns]
        return replace(state, columns=tuple(columns))

    line.write(
        choose,
        lambda ds: ds.rename_columns(mapping),
        build,
        pylance=None
        if len(mapping) > 1
        else lambda ds: ds.alter_columns({"path": first, "name": new}),
        lancedb=None
        if len(mapping) > 1
        else lambda table: table.alter_columns({"path": first, "rename": new}),
        rivals=RIVALS,
    )


@action(weight=1)
def widen_column(life: Life, choose: Choices) -> None:
    """Casts a column to a wider type: its values are written anew, and each row is updated."""
    line = life.line(choose)
    fixed = {*line.indexed(), *line.now.computed_from}
    narrow = [c.name for c in line.now.columns if ALL_KINDS[c.kind].wider and c.name not in fixed]
    name = choose.one_of("name", narrow)
    column = line.now.column(name)
    assert column is not None
    wide = replace(column, ident=life.ident(), kind=ALL_KINDS[column.kind].wider)
    life.origins[wide.ident] = column.ident

    def build(state: State, at: int) -> State:
        # a fragment that has no file of the column is left as it is
        written = line.stamps() if life.is_stable else {}
        rows = {}
        for key, row in state.rows.items():
            value = row.values.get(column.ident)
            is_unchanged = value is None and written.get(key) == row.updated
            values = {**row.values, wide.ident: value}
            rows[key] = replace(row, values=values, touched=row.touched if is_unchanged else at)
        by_others = choose.recorded["by"][0] in OTHERS  # they drop the column's metadata
        new = replace(wide, note="") if by_others else wide
        columns = tuple(new if c.ident == column.ident else c for c in state.columns)
        return replace(state, columns=columns, rows=rows)

    change = {"path": name, "data_type": ALL_KINDS[wide.kind].arrow}
    line.write(
        choose,
        lambda ds: ds.alter_columns(change),
        build,
        pylance=lambda ds: ds.alter_columns(change),
        lancedb=lambda table: table.alter_columns(change),
        rivals=("configure", "restore"),
    )


@action(weight=0.5)
def configure(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    entries = {"some.key": str(choose("value", lambda dice: dice.randrange(1000)))}
    line.write(
        choose,
        lambda ds: ds.update_config(entries),
        unchanged,
        pylance=lambda ds: ds.update_config(entries),
        rivals=("append", "delete", "replace"),
    )


@action(weight=0.7)
def add_and_fill(life: Life, choose: Choices) -> None:
    """Adds a column by upserting rows that have it, after it was added without values."""
    line = life.line(choose)
    name = choose.one_of("name", [name for name in NAMES if line.now.column(name) is None])
    column = Column(life.ident(), name, "string")
    keys = choose("keys", lambda dice: life.draw_keys(dice, 8))
    keys = [key for key in keys if key in line.now.rows]
    if not keys:
        raise DoesNotFit("no rows")
    line.ours().add_columns(column.arrow)
    line.advance(lambda state, _: replace(state, columns=(*state.columns, column)))
    data = pa.table({KEY: keys, name: [f"f{key}" for key in keys]})
    rows = {key: {name: f"f{key}"} for key in keys}
    line.write(
        choose,
        lambda ds: ds.upsert(data, on=KEY),
        lambda state, at: life.upserted(state, rows, at),
        rivals=("configure", "compact"),
    )
