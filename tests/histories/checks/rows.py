"""Rows of one version: as we read them, as pylance does, and as the format wants them."""

from collections import Counter
from typing import Any

from tests.histories.life import STAMPS, Life, Line, check_rows, plain_rows
from tests.histories.model import KEY
from tests.histories.steps import Choices, check


@check(weight=2)
def older_version(life: Life, choose: Choices) -> None:
    """A version has the rows that it had when it was committed."""
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    line.compare(line.ours(version), version)


@check(weight=2)
def same_rows_for_pylance(life: Life, choose: Choices) -> None:
    """pylance reads the same rows in the same order, with the same row ids and stamps."""
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    state = line.states[version]
    stamps = STAMPS if life.is_stable else []
    names = [KEY, *state.names, *stamps]
    theirs = plain_rows(line.pylance(version).to_table(columns=names))
    check_rows(theirs, state)
    stable = life.is_stable
    ours = line.ours(version).to_table(with_row_id=stable, with_row_versions=stable)
    assert plain_rows(ours.select(names)) == theirs


@check(weight=2)
def valid(life: Life, choose: Choices) -> None:
    """The version violates no rule of the format, as we know them and as pylance does."""
    line = life.line(choose)
    deep = choose.happens("deep", 0.3)
    findings = line.ours().verify(deep=deep)
    assert findings == [], findings
    line.pylance().validate()


@check(weight=1.5)
def take(life: Life, choose: Choices) -> None:
    """Rows can be taken by their row ids, in any order."""
    line = life.line(choose)
    if not life.is_stable:
        return
    rows = [*line.snapshot(line.newest).values()]
    order = choose("order", lambda dice: [dice.randrange(1000) for _ in range(5)])
    chosen = [rows[number % len(rows)] for number in order] if rows else []
    ds = line.ours()
    taken = plain_rows(ds.take(row_ids=[row["_rowid"] for row in chosen]))
    expected = [{name: row[name] for name in ds.schema.names} for row in chosen]
    assert taken == expected


@check(weight=3)
def filters(life: Life, choose: Choices) -> None:
    """A filter selects the rows that the model says, with and without indices."""
    line = life.line(choose)
    condition, expected = condition_of_rows(line, choose)
    keys = set(line.ours().to_table([KEY], condition)[KEY].to_pylist())
    assert keys == expected, condition
    if not any(name in condition for name in _zone_maps_in_segments(line)):
        theirs = set(line.pylance().to_table(columns=[KEY], filter=condition)[KEY].to_pylist())
        assert theirs == keys, f"pylance: {condition}"
    assert line.ours().count_rows(condition) == len(keys)


def _zone_maps_in_segments(line: Line) -> set[str]:
    """Return the columns whose zone map has several segments.

    pylance searches them all for `IS NULL`, and selects the values that have replaced nulls.
    """
    columns = [
        index["fields"][0] for index in line.pylance().list_indices() if index["type"] == "ZoneMap"
    ]
    return {column for column, count in Counter(columns).items() if count > 1}


def condition_of_rows(line: Line, choose: Choices) -> tuple[str, set[int]]:
    """Choose a condition on rows of the newest version; return it with the keys that meet it."""
    life, state = line.life, line.now
    ranged = choose("range", lambda dice: sorted(dice.randrange(life.next_key + 1) for _ in "ab"))
    conditions: list[tuple[str, set[int]]] = [
        (f"{KEY} >= {ranged[0]} AND {KEY} < {ranged[1]}", set(range(*ranged))),
        (f"{KEY} = {ranged[0]}", {ranged[0]}),
        (f"{KEY} IN ({ranged[0]}, {ranged[1]})", set(ranged)),
    ]
    for column in state.columns:
        values = {k: row.values.get(column.ident) for k, row in state.rows.items()}
        nulls = {k for k, value in values.items() if value is None}
        conditions.append((f"{column.name} IS NULL", nulls))
        if column.kind not in ("int32", "int64", "float32", "float64", "string"):
            continue
        candidates: Any = sorted({value for value in values.values() if value is not None})
        if not candidates:
            continue
        value = candidates[ranged[0] % len(candidates)]
        text = f"'{value}'" if column.kind == "string" else repr(value)
        conditions += [
            (f"{column.name} = {text}", {k for k, v in values.items() if v == value}),
            (
                f"{column.name} > {text} OR {KEY} = {ranged[1]}",
                {k for k, v in values.items() if v is not None and v > value} | {ranged[1]},
            ),
            (
                f"NOT ({column.name} <= {text})",
                {k for k, v in values.items() if v is not None and v > value},
            ),
        ]
    number = choose("place", lambda dice: dice.randrange(1000))
    condition, keys = conditions[number % len(conditions)]
    return condition, keys & state.rows.keys()
