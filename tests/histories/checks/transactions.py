"""A reader of transactions, as LanceDB's materialized views are one.

It keeps the fragments that it has seen. Those of an Append or an Update are new rows; those of a
Rewrite are rows that have moved. So what a transaction calls its fragments has to be what the
manifest calls them.
"""

from typing import Any

import lance

from tests.histories.life import Life, Line
from tests.histories.steps import Choices, check

Operation = lance.LanceOperation


@check(weight=1.5)
def transactions(life: Life, choose: Choices) -> None:
    """Each version's fragments follow from those of the one before and the transaction."""
    line = life.line(choose)
    checked: set[int] = line.memory.setdefault("transactions", set())
    for version in sorted(line.existing - checked):
        if version - 1 in line.existing and version > line.start + 1:
            check_transaction(line, version)
        checked.add(version)


def fragments_of(line: Line, version: int) -> dict[int, Any]:
    return {f.fragment_id: f.metadata for f in line.pylance(version).get_fragments()}


def check_transaction(line: Line, version: int) -> None:
    before, after = fragments_of(line, version - 1), fragments_of(line, version)
    try:
        transaction = line.pylance(version).read_transaction(version)
    except TypeError:  # pylance cannot show a rewritten index
        return
    if transaction is None:
        return
    operation = transaction.operation
    added = after.keys() - before.keys()
    removed = before.keys() - after.keys()
    name = type(operation).__name__
    if isinstance(operation, Operation.Rewrite):
        old = {f.id for group in operation.groups for f in group.old_fragments}
        new = {f.id for group in operation.groups for f in group.new_fragments}
        assert old == removed, f"version {version} rewrites {removed}, its transaction {old}"
        assert new == added, f"version {version} has the new {added}, its transaction {new}"
        for group in operation.groups:
            num_old = sum(live_rows(before[f.id]) for f in group.old_fragments)
            num_new = sum(live_rows(after[f.id]) for f in group.new_fragments)
            assert num_new <= num_old
    elif isinstance(operation, Operation.Append):
        assert not removed, name
        assert len(operation.fragments) == len(added), name
    elif isinstance(operation, Operation.Delete):
        assert not added, name
        assert set(operation.deleted_fragment_ids) == removed, name
    elif isinstance(operation, Operation.Update):
        assert set(operation.removed_fragment_ids) == removed, name
        assert len(operation.new_fragments) == len(added), name
        updated = {f.id for f in operation.updated_fragments}
        changed = {i for i in before.keys() & after.keys() if before[i] != after[i]}
        assert changed <= updated <= after.keys(), (name, changed, updated)


def live_rows(fragment: Any) -> int:
    return int(fragment.num_rows)
