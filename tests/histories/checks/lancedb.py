"""Rows as LanceDB reads them."""

from tests.histories.checks.rows import condition_of_rows
from tests.histories.life import Life, check_rows, plain_rows
from tests.histories.model import KEY
from tests.histories.steps import Choices, check


@check(weight=2)
def same_rows_for_lancedb(life: Life, choose: Choices) -> None:
    """LanceDB reads the same rows, of a version, by a condition and by row ids."""
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    table = line.lancedb()
    condition, keys = condition_of_rows(line, choose)
    query = table.search().where(condition).select([KEY]).limit(1 << 30)
    assert sorted(query.to_arrow()[KEY].to_pylist()) == sorted(keys), condition
    assert table.count_rows(condition) == len(keys), condition
    assert table.count_rows() == len(line.now.rows)
    if life.is_stable:
        rows = [*line.snapshot(line.newest).values()]
        order = choose("order", lambda dice: [dice.randrange(1000) for _ in range(5)])
        chosen = {rows[number % len(rows)]["_rowid"] for number in order} if rows else {}
        taken = table.take_row_ids([*chosen]).with_row_id().to_arrow() if chosen else None
        if taken is not None:
            actual = {row["_rowid"]: row[KEY] for row in plain_rows(taken)}
            expected = {row["_rowid"]: row[KEY] for row in rows if row["_rowid"] in chosen}
            assert actual == expected
    table.checkout(version)
    check_rows(plain_rows(table.to_arrow()), line.states[version])
    life.counts["reads by LanceDB"] += 1
