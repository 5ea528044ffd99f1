"""Columns that pylance rewrites in place: fragments keep their rows and get other data files."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from tests.histories.life import Life, Line
from tests.histories.model import KEY, Column, State, Value, Values, to_arrow
from tests.histories.steps import Choices, DoesNotFit, action


def keys_of(fragment: Any) -> list[int]:
    keys: list[int] = fragment.to_table(columns=[KEY])[KEY].to_pylist()
    return keys


def chosen_fragment(fragments: Iterable[Any], choose: Choices) -> tuple[Any, list[int]]:
    """Return a fragment, by a key that it has, and all of its keys."""
    by_key = {key: fragment for fragment in fragments for key in keys_of(fragment)}
    fragment = by_key[choose.one_of("fragment_of", sorted(by_key))]
    return fragment, keys_of(fragment)


@action(weight=1.5)
def rewrite_column(life: Life, choose: Choices) -> None:
    """Some rows of a fragment change in one column, with or without new row versions."""
    line = life.line(choose)
    name = choose.one_of("column", rewritable(line.now.plain_columns, line))
    column = line.now.column(name)
    assert column is not None
    fragment, keys = chosen_fragment(line.pylance().get_fragments(), choose)

    def draw(dice: Any) -> dict[int, Values]:
        some = dice.sample(keys, dice.randint(1, len(keys)))
        return {key: life.draw_values([column], dice) for key in some}

    rows = life.fitting_rows(line.now, choose("rows", draw))
    if not rows or not rows.keys() <= {*keys}:
        raise DoesNotFit("rows of the fragment")
    stamps = life.is_stable and choose.happens("stamps", 0.5)

    def rewrite(ds: Any) -> None:
        data = line.now.table(rows, [name])
        written, modified, *offsets = fragment.update_columns(
            data, left_on=KEY, right_on=KEY, with_offsets=stamps
        )
        operation = lance.LanceOperation.Update(
            updated_fragments=[written],
            fields_modified=modified,
            update_mode="rewrite_columns",
            updated_fragment_offsets={fragment.fragment_id: offsets[0]} if stamps else None,
        )
        lance.LanceDataset.commit(ds, operation, read_version=ds.version)

    def build(state: State, at: int) -> State:
        if stamps:
            return state.updated(rows, at)
        line.unstamped[at] = column.ident
        new = dict(state.rows)
        for key in keys:  # which of them have changed, nothing in the table tells
            values = {**new[key].values, **state.stored(rows.get(key, {}))}
            new[key] = replace(new[key], values=values, rewritten=at)
        return replace(state, rows=new)

    line.write(choose, None, build, pylance=rewrite)


@action(weight=0.7)
def replace_file(life: Life, choose: Choices) -> None:
    """All rows of a fragment get one value in a column that has a data file of its own."""
    line = life.line(choose)
    ds = line.pylance()
    leaves = [column for column in line.now.plain_columns if is_leaf(column)]
    name = choose.one_of("column", rewritable(leaves, line))
    column = line.now.column(name)
    assert column is not None
    field_id = ds.lance_schema.field(name).id()
    files = {
        fragment.fragment_id: file
        for fragment in ds.get_fragments()
        for file in fragment.metadata.files
        if [field for field in file.fields if field >= 0] == [field_id]
    }
    with_file = [fragment for fragment in ds.get_fragments() if fragment.fragment_id in files]
    fragment, keys = chosen_fragment(with_file, choose)
    value = choose("value", lambda dice: life.draw_values([column], dice))
    rows = life.fitting_rows(line.now, dict.fromkeys(keys, value))

    def replace_one(ds: Any) -> None:
        path = f"{life.number()}-replaced.lance"
        file = Path(line.uri, "data", path)
        write_values(file, column, [value[name]] * fragment.physical_rows, ds)
        old = files[fragment.fragment_id]
        new = lance.fragment.DataFile(
            path,
            [field_id],
            [0],
            old.file_major_version,
            old.file_minor_version,
            file_size_bytes=file.stat().st_size,
        )
        group = lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, new)
        operation = lance.LanceOperation.DataReplacement([group])
        lance.LanceDataset.commit(ds, operation, read_version=ds.version)

    line.write(choose, None, lambda state, at: state.updated(rows, at), pylance=replace_one)


def rewritable(columns: Iterable[Column], line: Line) -> list[str]:
    """Return the columns whose values may change unnoticed.

    LanceDB computes nothing from them. pylance names the items of a list that it rewrites and not
    the list, so that an index on the list goes on to cover the old values.
    """
    indexed = line.indexed()
    return [
        column.name
        for column in columns
        if column.name not in line.now.computed_from
        and (is_leaf(column) or column.name not in indexed)
    ]


def is_leaf(column: Column) -> bool:
    return column.kind not in ("list", "pair", "vector", "uuid")


def write_values(path: Path, column: Column, values: list[Value], ds: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    data = pa.table([to_arrow(values, column.kind)], schema=pa.schema([column.arrow]))
    with lance.file.LanceFileWriter(
        str(path), data.schema, version=ds.data_storage_version
    ) as writer:
        writer.write_batch(data)
