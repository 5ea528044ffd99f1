"""Large upserts whose driver is killed at each step, and started again: run by a test.

    python large_upserts_process.py URI

Each batch is a large one: three tasks stage it in files, and threads process its ranges. For each
step a process is forked, which applies a batch and kills itself at the step; then another one,
which applies the batch again, as Spark does, and the next one. Prints each step with the signal
that ended its process.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow as pa

import lance_stream
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.row_updates import in_place_costs, staged_files
from lance_stream.storage.local_store import LocalFileWriter, LocalStore
from lance_stream.upsert.large import staged_rows
from lance_stream.upsert.large.staged_rows import discard_staged, stage_rows, upsert_staged
from lance_stream.upsert.rules import UpsertRules

NUM_KEYS = 400
ROWS_A_BATCH = 150
RULES = UpsertRules(("id",), "seq", "op = 'd'", ("op",))

STEPS: dict[str, tuple[str, str, int, bool]] = {
    "a task has staged its rows": ("close", "staged_rows/", 2, True),
    "a task stages its rows": ("close", "staged_rows/", 3, False),
    "a range is read": ("read_ranges", "staged_rows/", 2, False),
    "changed rows are left over": ("close", "staged_rows/", 5, True),
    "a range is written": ("close", "data/", 1, True),
    "columns are written beside the others": ("close", "data/", 4, False),
    "deletion files are written": ("write", "_deletions/", 1, True),
    "before the commit": ("create_once", "_versions/", 1, False),
    "after the commit": ("create_once", "_versions/", 1, True),
    "staged rows are discarded": ("delete", "staged_rows/", 2, True),
}
"""Which call kills the process: its name, what its path contains, its number, and whether it is
done."""


def rows_of(number: int) -> pa.Table:
    """Return a batch: changes of old keys, deletes, and new ones; some lack the wide column."""
    keys = [(number * 37 + index * 3) % NUM_KEYS for index in range(ROWS_A_BATCH)]
    keys = list(dict.fromkeys(keys))
    columns: dict[str, Any] = {
        "id": pa.array(keys, pa.int64()),
        "seq": pa.array([number] * len(keys), pa.int64()),
        "x": pa.array([number * 1000 + key for key in keys], pa.int64()),
        "op": ["d" if (key + number) % 11 == 0 else "u" for key in keys],
    }
    if number == 0:
        columns["wide"] = [f"{key} " * 500 for key in keys]
    return pa.table(columns)


def expected(num_batches: int) -> dict[int, tuple[int, bool]]:
    """Return of each key the number `x`, and whether it has a wide value."""
    state: dict[int, tuple[int, bool]] = {}
    for number in range(num_batches):
        for row in rows_of(number).to_pylist():
            had = number == 0 or state.get(row["id"], (0, False))[1]
            if row["op"] == "d":
                state.pop(row["id"], None)
            else:
                state[row["id"]] = row["x"], had
    return state


def apply(uri: str, number: int) -> None:
    """Apply a batch as a large one."""
    table, rows = lance_stream.open_dataset(uri).table, rows_of(number)
    if number:  # the first one has new rows only
        for name, value in (("MIN_ROWS", 1), ("BUNDLES_PER_BATCH", 8)):
            setattr(staged_files, name, value)
    staged = []
    try:
        for task, start in enumerate(range(0, rows.num_rows, 50)):
            batches = rows.slice(start, 50).to_batches()
            staged.append(stage_rows(batches, table.store, table.arrow_schema, RULES, task=task))
        identity = PendingBatch.of("app", number, digest=digest_of(rows))
        upsert_staged(table, staged, RULES, rows.schema.names, pa.int64(), identity)
    finally:
        discard_staged(table.store, staged)


def killing(step: str) -> None:
    """Let the process kill itself at a step."""
    name, path, count, done = STEPS[step]
    kind: Any = LocalFileWriter if name == "close" else LocalStore
    inner: Callable[..., Any] = getattr(kind, name)
    remaining = [count]

    def call(instance: Any, *arguments: Any, **named: Any) -> Any:
        where = instance._target if name == "close" else arguments[0]
        remaining[0] -= path in where
        if path in where and remaining[0] == 0 and not done:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = inner(instance, *arguments, **named)
        if path in where and remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(kind, name, call)


def forked(act: Callable[[], object]) -> int:
    """Do something in a process of its own, and return how it ended: 0, or minus its signal."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(uri: str) -> None:
    """Apply batches, and kill a process at each step."""
    staged_rows.MAX_ROWS = 40  # type: ignore[misc]  # Final for others
    staged_rows._MAX_INLINE_BYTES = 0  # type: ignore[misc]  # Final for others
    always = property(lambda _: True)
    mock.patch.object(in_place_costs.FragmentCosts, "is_cheaper_in_place", always).start()
    print(forked(lambda: apply(uri, 0)), "no step", flush=True)
    for number, step in enumerate(STEPS, start=1):

        def be_killed(number: int = number, step: str = step) -> None:
            killing(step)
            apply(uri, number)

        print(forked(be_killed), step, flush=True)
        status = forked(lambda number=number: apply(uri, number))  # type: ignore[misc]  # bound now
        print(status, "again", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
