"""Replays of quarantined rows: each comes into the table once, even by a process that dies."""

from functools import partial
from typing import Any

import lance_stream
from tests.histories.actions.beside import check_quarantined, quarantine_of
from tests.histories.life import Life, unchanged
from tests.histories.steps import Choices, DoesNotFit, action
from tests.histories.trouble import DiedError, dying
from tests.keys.index.small_runs import restart


@action(weight=0.7)
def replay_quarantined(life: Life, choose: Choices) -> None:
    """The rows of one batch are replayed by its own conditions, which they miss, or by none."""
    line = life.line(choose)
    batches: dict[str, Any] = line.memory.get("quarantined", {})
    number = choose.one_of("batch", sorted(batches.get("values", {})))
    rows, columns = batches["values"][number]
    if "restored by pylance" in line.memory or line.now.columns != columns:
        raise DoesNotFit("the ledger lacks the batch, or other columns")
    if not rows.keys().isdisjoint(line.now.rows):
        raise DoesNotFit("keys that exist")
    way = choose("way", lambda dice: dice.choice(["as before", "at once", "dies"]))
    where = f"batch_id = {number} AND app_id = '{batches['app_id']}'"
    replay = partial(
        lance_stream.replay_quarantine,
        line.root,
        branch=line.branch,
        quarantine=quarantine_of(line),
        where=where,
    )
    if way == "as before":
        replayed = replay()
        line.advance(unchanged, may_stay=True)
        assert replayed.rows_replayed == 0, replayed
        return
    if way == "dies":
        at, is_done = choose("at", lambda dice: [dice.randrange(1, 40), dice.random() < 0.5])
        try:
            with dying(at, done=is_done):
                replay(expect={})
        except DiedError:
            restart()
        has_rows = line.ours().count_rows() > len(line.now.rows)
        if has_rows:
            line.advance(lambda state, at: life.inserted(state, rows, at))
            replay(expect={})
            line.advance(unchanged, may_stay=True)
        else:
            line.advance(unchanged, may_stay=True)
    if way == "at once" or not has_rows:
        replayed = replay(expect={})
        line.advance(lambda state, at: life.inserted(state, rows, at))
        assert replayed.rows_replayed == len(rows), replayed
    del batches["values"][number]
    batches["rows"] -= rows.keys()
    check_quarantined(line)
