"""Lists the quarantined rows of a table, also those on their way to the quarantine."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lance_stream.quarantine.quarantine_writer import staged_rows, unpublished_files
from lance_stream.quarantine.table import open_both
from lance_stream.read.scan import scan

READY: Final = "ready"
STALE: Final = "stale"


@dataclass(frozen=True)
class QuarantinedRows:
    """Quarantined rows of one batch with the same reason.

    Attributes:
        app_id: The stream.
        batch_id: The batch.
        reason: The reason: the name of a check, "null key", "null" or "type".
        column: The offending column; None if the reason concerns no single column.
        num_rows: The number of rows.
        time: The time at which the first row was quarantined.
        message: The problem of the first row.
        row: The first row, as JSON.
        state: "ready" if a replay writes the rows that fit. "stale" if no replay does: the table
            was re-created or restored, or has forgotten the stream, which then started over at this
            batch or an earlier one and quarantined its rows again. They stay until you delete them.
    """

    app_id: str
    batch_id: int
    reason: str
    column: str | None
    num_rows: int
    time: datetime
    message: str
    row: str
    state: str


def list_quarantine(
    uri: str | os.PathLike[str],
    *,
    branch: str | None = None,
    quarantine: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[QuarantinedRows]:
    """Return the quarantined rows of a table, grouped by batch and reason, oldest batch first.

    Args:
        uri: The table's location.
        branch: The branch that the sink writes; None for the main branch.
        quarantine: The location of the quarantine; by default, next to the table. Required for a
            branch.
        storage_options: Settings of the store.

    Raises:
        InvalidInputError: An argument is invalid; there is another table at the quarantine's
            location; the table is itself a quarantine; or the location of a branch's quarantine is
            missing.
    """
    table, bad, _ = open_both(uri, branch, quarantine, storage_options)
    columns = ["app_id", "batch_id", "stale", "reason", "column", "time", "message", "row"]
    batches = [] if bad is None else [scan(bad, columns)]
    for name in unpublished_files(table, bad).values():
        rows = staged_rows(table, name)
        batches.extend([] if rows is None else [rows.select(columns).to_batches()])
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for batch in itertools.chain.from_iterable(batches):
        for row in batch.to_pylist():
            key = tuple(row[name] for name in columns[:5])
            group = groups.setdefault(key, [0, row])
            group[0] += 1
            if row["time"] < group[1]["time"]:
                group[1] = row
    entries = [
        QuarantinedRows(
            app_id,
            batch_id,
            reason,
            column,
            num_rows,
            first["time"],
            first["message"],
            first["row"],
            STALE if stale else READY,
        )
        for (app_id, batch_id, stale, reason, column), (num_rows, first) in groups.items()
    ]
    return sorted(entries, key=lambda entry: (entry.app_id, entry.batch_id, entry.reason))
