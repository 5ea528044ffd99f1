"""Materialized views that LanceDB keeps of a table, and the change feeds of these views.

A refreshed view has the rows of its query, however the table has changed: by which writer, with
which compactions, restores and renames between two refreshes. A view is a table, too: its feed, cut
anywhere, gives its rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_stream.feed.following.positions import Limits
from tests.histories.checks.replicas import Replica
from tests.histories.lancedb_tables import connect
from tests.histories.life import Life, Line, plain_rows
from tests.histories.model import ALL_KINDS, KEY, Column, Row, State
from tests.histories.steps import Choices, DoesNotFit, action

MAX_VIEWS = 3


class ReplicaOfView(Replica):
    """Follows a view, without the column that LanceDB adds."""

    def apply(self, changes: pa.Table, *, by_tasks: bool = False) -> None:
        super().apply(changes.drop_columns(["__source_row_id"]), by_tasks=by_tasks)


@dataclass
class View:
    """A view.

    Attributes:
        line: The versions of the view itself.
        source: Its column of the table, besides the key.
        min_key: The smallest key that it shows.
        min_value: The smallest value that it shows; None for all, and nulls.
        replica: Follows the view.
        version: The version of the table that it shows.
    """

    line: Line
    source: Column
    min_key: int
    min_value: int | None
    replica: ReplicaOfView
    version: int

    def lacks_rewrites(self, table: Line) -> bool:
        """Whether its column has other values, in rows whose row versions are the same.

        An incremental refresh does not see that. Values change so by a rewrite without new row
        versions, or by a restore from before or after one.
        """
        rewrites = {v for v, ident in table.unstamped.items() if ident == self.source.ident}
        changes = rewrites | table.restored if rewrites else set()
        return any(version > self.version for version in changes)

    def expected(self, state: State) -> dict[int, Any]:
        """Return the value that the view has for each key of a version of the table."""
        return {
            key: row.values.get(self.source.ident)
            for key, row in state.rows.items()
            if key >= self.min_key and self._has(row.values.get(self.source.ident))
        }

    def _has(self, value: Any) -> bool:
        return self.min_value is None or (value is not None and value >= self.min_value)

    def adopt(self) -> None:
        """Take the versions that LanceDB has committed since."""
        line = self.line
        for version in range(line.newest + 1, line.ours().version + 1):
            rows = plain_rows(line.pylance(version).to_table(columns=[KEY, self.source.name]))
            line.states[version] = State(
                (self.source,),
                {
                    row[KEY]: Row(row[KEY], {self.source.ident: row[self.source.name]}, 0, 0)
                    for row in rows
                },
            )
            assert len(rows) == len(line.states[version].rows), f"a key is twice in {line.name}"
            line.existing.add(version)


@action(weight=1)
def create_view(life: Life, choose: Choices) -> None:
    """LanceDB creates a view of the key and one column, mostly of some rows.

    If its condition is about the column, an update lets rows enter and leave it.
    """
    line = _table_of_views(life, choose)
    views: dict[int, View] = line.memory.setdefault("views", {})
    if len(views) >= MAX_VIEWS:
        raise DoesNotFit("enough views")
    names = [column.name for column in line.now.plain_columns if column.kind != "uuid"]
    name = choose.one_of("column", names)
    min_key = choose("min_key", lambda dice: dice.choice([0, dice.randint(0, life.next_key)]))
    column = line.now.column(name)
    assert column is not None
    is_number = ALL_KINDS[column.kind].is_number
    min_value = choose("min_value", lambda dice: 50 if is_number and dice.random() < 0.5 else None)
    if min_value is not None and not is_number:
        raise DoesNotFit("numbers")
    conditions = [f"{KEY} >= {min_key}"] if min_key else []
    conditions += [] if min_value is None else [f"{name} >= {min_value}"]
    number = life.number()
    connect(life.folder).create_materialized_view(
        f"view{number}",
        Path(line.root).stem,
        select=[KEY, name],
        where=" AND ".join(conditions) or None,
    )
    view_line = Line(life, f"{life.folder}/view{number}.lance")
    replica = ReplicaOfView(view_line)
    views[number] = View(view_line, column, min_key, min_value, replica, line.newest)
    views[number].adopt()


@action(weight=4)
def refresh_view(life: Life, choose: Choices) -> None:
    """A refreshed view has the rows of its query, and a replica of the view has them, too."""
    line = _table_of_views(life, choose)
    views: dict[int, View] = line.memory.get("views", {})
    number = choose.one_of("view", sorted(views))
    view = views[number]
    is_full = choose.happens("full", 0.1) or view.lacks_rewrites(line)
    column = line.now.column(view.source.name)
    try:
        result = connect(life.folder).open_materialized_view(f"view{number}").refresh(full=is_full)
    except Exception as error:
        if column == view.source:
            raise
        life.counts[f"views refused: {type(error).__name__} {str(error)[:160]}"] += 1
        del views[number]
        return
    life.counts[f"views: {result.mode}"] += 1
    if column != view.source:  # dropped, renamed or overwritten
        del views[number]
        return
    view.adopt()
    view.version = line.newest
    state = view.line.now
    stored = {key: row.values.get(view.source.ident) for key, row in state.rows.items()}
    expected = view.expected(line.now)
    assert stored == expected, (
        f"{view.line.name}, {result.mode}: missing {sorted(expected.keys() - stored.keys())}, "
        f"unexpected {sorted(stored.keys() - expected.keys())}, different "
        f"{[(stored[k], value) for k, value in expected.items() if stored.get(k) != value]}"
    )
    assert view.line.ours().verify() == []
    if choose.happens("compacts", 0.3):
        view.line.ours().compact(choose("size", lambda dice: dice.choice([3, 30])))
        view.adopt()
        assert view.line.now == state
    _follow(view, choose)


def _follow(view: View, choose: Choices) -> None:
    """Let the replica of a view take some batches, or all."""
    limits: Mapping[str, int | None] = choose(
        "limits",
        lambda dice: {
            "rows": dice.choice([None, 1, 3, 7]),
            "size_bytes": dice.choice([None, None, 100]),
            "versions": dice.choice([None, None, 1, 2]),
        },
    )
    for _ in range(choose("batches", lambda dice: dice.randint(0, 4))):
        view.replica.take(Limits(**limits))
        view.replica.check()
    if choose.happens("stays behind", 0.5):
        return
    while view.replica.take(Limits(**limits)):
        view.replica.check()
    assert view.replica.reached.version == view.line.newest
    view.replica.check()


def _table_of_views(life: Life, choose: Choices) -> Line:
    line = life.line(choose)
    if line.branch is not None or not (life.has_lancedb and life.is_stable):
        raise DoesNotFit("LanceDB has views of tables with stable row ids only")
    return line
