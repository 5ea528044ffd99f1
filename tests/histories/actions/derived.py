"""Values that a function computes, in the table or in one beside it: once for each change of a row.

The value is made from the text so that no two texts have the same: whether a row is current shows
in the row. What a round writes, and its stamps, are taken from the table; that it is right, and
that nothing else changes, is checked.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lance_stream import NotFoundError, open_dataset
from lance_stream.derived.derivation import Derivation, derive
from lance_stream.derived.fingerprints import fingerprints_of
from tests.histories.life import STAMPS, Life, Line, Rival
from tests.histories.model import KEY, Column, State
from tests.histories.steps import Choices, DoesNotFit, action

VALUE, STATE = "value", "value_state"
RIVALS = ("append", "delete", "update", "upsert", "configure", "compact", "restore")


def current(state: State, name: str, function: str, version: int) -> dict[int, bool]:
    """Return for each key whether its row is current; the value of one that is has to be right."""
    value, number = state.column(VALUE), state.column(STATE)
    if value is None or number is None or not state.rows:
        return dict.fromkeys(state.rows, False)
    texts = [state.values_by_name(row)[name] for row in state.rows.values()]
    batch = pa.record_batch({name: pa.array(texts, pa.string())})
    numbers = fingerprints_of(batch, function).tolist()
    are_current = {}
    for (key, row), text, expected in zip(state.rows.items(), texts, numbers, strict=True):
        are_current[key] = row.values.get(number.ident) == expected
        if are_current[key]:
            computed = row.values.get(value.ident)
            assert computed == f"{version}:{text}", (
                f"the value of {key} is outdated: {computed!r}, {text!r}"
            )
    return are_current


def adopt(line: Line) -> None:
    """Take the values and stamps of derived rows from the versions that were made since."""
    for version in range(line.newest + 1, line.ours().version + 1):
        ds, state = line.ours(version), line.now
        kinds = {VALUE: "derived", STATE: "state"}
        added = [
            Column(line.life.ident(), name, kinds[name])
            for name in ds.schema.names
            if name != KEY and state.column(name) is None
        ]
        state = replace(state, columns=(*state.columns, *added))
        columns = [column for column in state.columns if column.name in kinds]
        names = [KEY, *(column.name for column in columns)]
        rows = dict(state.rows)
        for stored in ds.to_table(names, with_row_versions=True).to_pylist():
            row = rows[stored[KEY]]
            values = {column.ident: stored[column.name] for column in columns}
            if any(row.values.get(ident) != value for ident, value in values.items()):
                values = {**row.values, **values}
                rows[stored[KEY]] = replace(row, values=values, touched=stored[STAMPS[2]])
        line.states[version] = replace(state, rows=rows)
        line.existing.add(version)
        line.compare(ds, version)


@action(weight=0.8)
def derive_in_table(life: Life, choose: Choices) -> None:
    """Columns computed from a column of the same table, while a rival writes or not."""
    line = life.line(choose)
    if not life.is_stable or line.branch is not None or line.memory.get("parent"):
        raise DoesNotFit("the main branch of a table with stable row ids")
    name = choose.one_of("column", [c.name for c in line.now.columns if c.kind == "string"])
    version = choose("function", lambda dice: dice.choice([1, 1, 1, 2]))
    rival = choose("rival", lambda dice: draw_rival(line, dice) if dice.random() < 0.4 else [])
    batch_rows = choose("batch_rows", lambda dice: dice.choice([3, 1000]))
    rows_per_commit = choose("rows_per_commit", lambda dice: dice.choice([7, 1000]))
    texts: list[str | None] = []
    rivals = [Rival(*rival)] if rival else []

    def compute(batch: pa.RecordBatch) -> list[str]:
        if rivals:
            adopt(line)
            line.let_rival_write(rivals.pop())
        texts.extend(batch[name].to_pylist())
        return [f"{version}:{text}" for text in batch[name].to_pylist()]

    derivation: Derivation = derive(
        line.uri,
        {VALUE: pa.string()},
        compute,
        [name],
        function_version=str(version),
        batch_rows=batch_rows,
        rows_per_commit=rows_per_commit,
    )
    function = derivation.declaration.fingerprint
    stale = [
        key
        for key, is_current in current(line.now, name, function, version).items()
        if not is_current
    ]
    for _ in range(2 if rival else 1):
        outcome = derivation.run()
        adopt(line)
    life.counts["rows derived"] += len(texts)
    after = current(line.now, name, function, version)
    assert all(after.values()), f"not current: {[key for key, it in after.items() if not it]}"
    assert outcome.num_pending == 0
    if not rival:
        assert len(texts) == len(stale) == outcome.num_computed, (len(texts), len(stale), outcome)


@action(weight=0.7)
def derive_beside(life: Life, choose: Choices) -> None:
    """Values in a table of their own, of one column or two, computed while a rival writes or not.

    The columns are those that have the names now: another one may have had them before.
    """
    line = life.line(choose)
    if not life.is_stable or line.branch is not None:
        raise DoesNotFit("derivations follow the main branch of tables with stable row ids")
    texts_of = sorted(c.name for c in line.now.columns if c.kind == "string")
    inputs = [choose.one_of("column", texts_of)]
    if choose.happens("of two", 0.5):
        if len(texts_of) < 2:
            raise DoesNotFit("one column")
        inputs += [name for name in texts_of if name not in inputs][:1]
    tables: dict[tuple[str, ...], str] = line.memory.setdefault("derived", {})
    target = tables.setdefault(tuple(inputs), f"{life.folder}/derived{life.number()}")
    version = choose("function", lambda dice: dice.choice([1, 1, 1, 2]))
    rival = choose("rival", lambda dice: draw_rival(line, dice) if dice.random() < 0.3 else [])
    rows_per_commit = choose("rows_per_commit", lambda dice: dice.choice([3, 30, 1000]))
    computed: list[str] = []
    rivals = [Rival(*rival)] if rival else []

    def value_of(row: Mapping[str, Any]) -> str:
        return ":".join([str(version), *(str(row[name]) for name in inputs)])

    def compute(batch: pa.RecordBatch) -> list[str]:
        if rivals:
            line.let_rival_write(rivals.pop())
        values = [value_of(row) for row in batch.to_pylist()]
        computed.extend(values)
        return values

    derivation = derive(
        line.uri,
        {VALUE: pa.string()},
        compute,
        inputs,
        function_version=str(version),
        target=target,
        copy_columns=[KEY],
        rows_per_commit=rows_per_commit,
    )
    for _ in range(2 if rival else 1):
        before, num_computed = values_beside(line, target), len(computed)
        outcome = derivation.run()
        assert outcome.num_computed == len(computed) - num_computed
    expected = {
        key: (key, value_of(line.now.values_by_name(row))) for key, row in line.now.rows.items()
    }
    assert values_beside(line, target) == expected
    if not rival:
        changed = {key for key, value in expected.items() if before.get(key) != value}
        assert len(computed) == len(changed), (len(computed), changed)
    num_computed = len(computed)
    derivation.run()
    assert len(computed) == num_computed, "rows that are current were computed again"


def values_beside(line: Line, target: str) -> dict[int, tuple[int, str]]:
    """Return the copied keys and the values of the rows that the table has now, by key."""
    rows = line.ours().to_table([KEY], with_row_id=True)
    keys = dict(zip(rows["_rowid"].to_pylist(), rows[KEY].to_pylist(), strict=True))
    values: dict[int, tuple[int, str]] = {}
    with suppress(NotFoundError):
        stored = open_dataset(target).to_table().to_pylist()
        assert len({row["source_row_id"] for row in stored}) == len(stored)
        for row in stored:
            if row["source_row_id"] in keys:
                values[keys[row["source_row_id"]]] = row[KEY], row[VALUE]
    return values


def draw_rival(line: Line, dice: Any) -> list[Any]:
    name = dice.choice(RIVALS)
    return [name, line.draw_rival(name, dice), line.draw_rival_writer(name, dice)]
