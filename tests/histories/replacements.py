"""Tables that take another table's place: deleted and created again, or put back from a copy.

    copy       what the table and its model were at a moment
    delete     the table is deleted
    replace    the table is deleted; a new one, or a copy, stands at its location, and others write
               to it

The new table has the same location and may have the same version numbers. A writer that planned on
the old one must not commit to it, and a reader must notice that it is another table.
"""

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance

import lance_stream
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.table.paths import DATA_DIRECTORY, DELETIONS_DIRECTORY, STAGED_ROWS_DIRECTORY
from tests.histories.model import State, Values
from tests.histories.steps import DoesNotFit

if TYPE_CHECKING:
    from tests.histories.life import Line

MODEL = ("states", "existing", "row_ids", "restored", "unstamped", "snapshots", "memory")
"""What of a line is a model of its table."""

NOT_COPIED = (
    "replica",
    "consuming_replica",
    "derived",
    "transactions",
    "applied",
    "ahead",
    "views",
)
"""What a line remembers of others than its table, or of what it has checked."""


@dataclass
class Copy:
    """A table at a moment.

    Attributes:
        folder: Where its files are.
        model: The attributes `MODEL` of the line.
        tags: The tags of the table.
    """

    folder: str
    model: Mapping[str, Any]
    tags: Mapping[tuple[str, str], tuple["Line", int]]


def check_is_alone(line: "Line") -> None:
    """Raise `DoesNotFit` if the line has branches or clones, which need its table."""
    if len(line.life.lines) != 1:
        raise DoesNotFit("branches and clones need the table")


def copied(value: Any) -> Any:
    match value:
        case dict():
            return {key: copied(item) for key, item in value.items()}
        case set():
            return set(value)
    return value


def copy_table(line: "Line") -> None:
    """Keep a copy of the table."""
    check_is_alone(line)
    if "quarantined" in line.memory:
        raise DoesNotFit("a quarantine is a table of its own")
    folder = f"{line.life.folder}/copy{line.life.number()}"
    shutil.copytree(line.root, folder)
    model = {name: copied(getattr(line, name)) for name in MODEL}
    for name in NOT_COPIED:
        model["memory"].pop(name, None)
    line.life.copies.append(Copy(folder, model, dict(line.life.tags)))


def draw_replacement(line: "Line", dice: random.Random) -> list[Any]:
    """Draw which table takes the place of a line's, and the rows that others append to it."""
    life = line.life
    copies = range(len(life.copies))
    which = dice.choice([*copies]) if copies and dice.random() < 0.6 else "new"
    return [which, [life.draw_new_rows(line.now, dice, 3) for _ in range(dice.randint(0, 3))]]


def delete_table(line: "Line") -> None:
    """Delete a table with all that belongs to it; a replica of it stays."""
    check_is_alone(line)
    replica = line.memory.get("replica")
    shutil.rmtree(line.root, ignore_errors=True)
    shutil.rmtree(quarantine_uri(line.root), ignore_errors=True)
    line.stale = None
    _become(line, {name: type(getattr(line, name))() for name in MODEL} | {"states": {0: State()}})
    line.life.tags.clear()
    if replica is not None:
        line.memory["replica"] = replica
    line.memory["is_replaced"] = True


def replace_table(line: "Line", which: Any, batches: list[Mapping[int, Values]]) -> None:
    """Put another table in the place of a line's, and let others append rows to it.

    Args:
        line: The only line of its life.
        which: The number of a copy; or "new" for a table with the same columns.
        batches: The rows of each version.
    """
    life, columns = line.life, line.now.row_columns
    if which != "new" and which >= len(life.copies):
        raise DoesNotFit("no such copy")
    delete_table(line)
    if which == "new":
        empty = State(columns)
        lance_stream.create_dataset(
            line.root, empty.schema, life.file_version, stable_row_ids=life.is_stable
        )
        line.advance(lambda *_: empty, look=False)
    else:
        copy, memory = life.copies[which], line.memory
        shutil.copytree(copy.folder, line.root)
        _become(line, {name: copied(value) for name, value in copy.model.items()})
        line.memory |= memory
        life.tags.update(copy.tags)
    life.counts["tables replaced"] += 1
    for batch in batches:
        try:
            rows = life.fitting_new_rows(line.now, batch)
        except DoesNotFit:
            continue
        lance.write_dataset(line.now.table(rows), line.root, mode="append")
        line.advance(lambda state, at: life.inserted(state, rows, at), look=False)  # noqa: B023  # called at once


def _become(line: "Line", model: Mapping[str, Any]) -> None:
    for name, value in model.items():
        setattr(line, name, value)


def files_of(line: "Line") -> set[str]:
    """Return the data and deletion files of a line, and the staged rows of its commits."""
    folders = (DATA_DIRECTORY, DELETIONS_DIRECTORY, STAGED_ROWS_DIRECTORY)
    return {str(path) for folder in folders for path in Path(line.root, folder).glob("*")}
