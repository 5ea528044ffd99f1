"""Columns that LanceDB computes: its refresh gives the right values, whatever we and others do.

LanceDB declares such a column in the metadata of the field. Other writers leave it null in new rows
and as it is in others; LanceDB's refresh finds the rows to compute. What would break that, our
verbs refuse.
"""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError
from tests.histories.life import STAMPS, Life, Line
from tests.histories.model import ALL_KINDS, KEY, Column
from tests.histories.steps import Choices, DoesNotFit, action, check

NAME = "computed"
PLUS = 7
WIDE = pa.decimal128(30)


@action(weight=1)
def declare_computed_column(life: Life, choose: Choices) -> None:
    """LanceDB declares a column that it computes from a number.

    LanceDB 0.40 cannot compute it from a column without nulls, such as the key, once rows of a
    fragment are deleted.
    """
    line = _line_in_lancedb(life, choose)
    if line.now.column(NAME) is not None:
        raise DoesNotFit("it is declared")
    columns = [column for column in line.now.plain_columns if not column.is_required]
    numbers = [column.name for column in columns if ALL_KINDS[column.kind].is_number]
    source = choose.one_of("source", numbers)
    line.lancedb().add_columns(computed={NAME: f"CAST({source} AS BIGINT) + {PLUS}"})
    _adopt(line, Column(life.ident(), NAME, "computed", computed_from=source))


@action(weight=3)
def refresh_computed_column(life: Life, choose: Choices) -> None:
    """After a refresh each row has the value of the expression."""
    line = _line_in_lancedb(life, choose)
    column = _computed(line)
    line.lancedb().refresh_column(NAME)
    _adopt(line, column)
    source = line.now.column(column.computed_from)
    assert source is not None
    for key, row in line.now.rows.items():
        value = row.values.get(source.ident)
        expected = None if value is None else int(value) + PLUS
        stored = row.values.get(column.ident)
        assert stored == expected, f"the computed value of {key} is {stored}, not {expected}"
    life.counts["refreshes of computed columns"] += 1


@action(weight=0.3)
def drop_computed_column(life: Life, choose: Choices) -> None:
    """A computed column is dropped, and its input is free."""
    line = life.line(choose)
    _computed(line)
    line.write(
        choose,
        lambda ds: ds.drop_columns(NAME),
        lambda state, _: state.without_column(NAME),
        pylance=lambda ds: ds.drop_columns([NAME]),
        lancedb=lambda table: table.drop_columns([NAME]),
        rivals=("configure", "delete"),
    )


@check(weight=1)
def computed_columns_are_protected(life: Life, choose: Choices) -> None:
    """Rows with a computed column, and changes of its input or declaration, are refused."""
    line = life.line(choose)
    column, now = _computed(line), line.now
    rows = {key: now.values_by_name(row) for key, row in now.rows.items()}
    whole = now.table(rows).append_column(NAME, pa.array([1] * len(rows), pa.int64()))
    source = column.computed_from
    verbs: dict[str, Callable[[Dataset], object]] = {
        "append": lambda ds: ds.append(whole),
        "upsert": lambda ds: ds.upsert(whole, on=KEY),
        "overwrite": lambda ds: ds.overwrite(whole),
        "update": lambda ds: ds.update({NAME: "1"}),
        "drop the input": lambda ds: ds.drop_columns(source),
        "rename the input": lambda ds: ds.rename_columns({source: "other"}),
        "cast": lambda ds: ds.alter_columns({"path": NAME, "data_type": WIDE}),
        "declare": lambda ds: ds.update_metadata(fields={NAME: {"computed_column": None}}),
    }
    if whole.schema.field(source).type == pa.int64():
        change = {"path": source, "data_type": WIDE}
        verbs["cast the input"] = lambda ds: ds.alter_columns(change)
    verb = choose.one_of("verb", [*verbs])
    with pytest.raises(InvalidInputError, match=NAME):
        verbs[verb](line.ours())
    assert line.ours().version == line.newest


def _line_in_lancedb(life: Life, choose: Choices) -> Line:
    line = life.line(choose)
    if line.branch is not None or not line.is_for_lancedb:
        raise DoesNotFit("LanceDB")
    return line


def _computed(line: Line) -> Column:
    column = line.now.column(NAME)
    if column is None or not column.computed_from:
        raise DoesNotFit("no computed column")
    return column


def _adopt(line: Line, column: Column) -> None:
    """Take the values and stamps of a computed column from the versions that LanceDB committed."""
    is_stable = line.life.is_stable
    for version in range(line.newest + 1, line.ours().version + 1):
        ds, state = line.ours(version), line.now
        if state.column(NAME) is None:
            state = replace(state, columns=(*state.columns, column))
        rows = dict(state.rows)
        for stored in ds.to_table([KEY, NAME], with_row_versions=is_stable).to_pylist():
            row = rows[stored[KEY]]
            values = {**row.values, column.ident: stored[NAME]}
            stamp = stored[STAMPS[2]] if is_stable else row.updated
            touched = row.touched if stamp == row.updated else stamp
            rows[stored[KEY]] = replace(row, values=values, touched=touched)
        line.states[version] = replace(state, rows=rows)
        line.existing.add(version)
        line.compare(ds, version)
