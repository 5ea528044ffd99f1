"""What became of a micro-batch: for the user's program, and as a line of the log."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lance_stream.table.fragments import Fragment

_log = logging.getLogger("lance_stream.sink")


@dataclass(frozen=True)
class SinkCommit:
    """What became of a micro-batch.

    Attributes:
        batch_id: Its number.
        app_id: The stream's name in the table's ledger.
        version: The version that holds the batch; None where there was nothing to do.
        skipped: Whether the table had the batch already, so that nothing was written.
        rows_differ: Whether the batch was skipped although it had other rows than the table took in
            under its number: the query's plan does not promise the same rows each time.
        rows_in: Rows that came in; 0 where the batch was skipped.
        rows_inserted: Rows that came into the table.
        rows_updated: Rows that were changed in place of their row ids.
        rows_deleted: Rows that were taken out.
        rows_unchanged: Rows that would not have changed, and were left alone (`skip_unchanged`).
        rows_late: Rows that lost against a newer one, of the batch or the table (`sequence_by`), or
            against a delete that the table remembers.
        deletes_remembered: Deletes of the batch that the table remembers (`tombstones`).
        num_files: How many data files were written.
        bytes_written: Their size.
        attempts: How many attempts the commit took; 1 when nobody was in the way.
        seconds: How long each phase took: "plan" (the ledger, the schema), "collect" (an upsert's
            rows to the driver), "scan" (their keys in the table), "write", "commit".
    """

    batch_id: int
    app_id: str
    version: int | None = None
    skipped: bool = False
    rows_differ: bool = False
    rows_in: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_unchanged: int = 0
    rows_late: int = 0
    deletes_remembered: int = 0
    num_files: int = 0
    bytes_written: int = 0
    attempts: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


def log_commit(uri: str, commit: SinkCommit) -> None:
    """Write one line to the log "lance_stream.sink": the table and the commit, as JSON.

    The names are those of `SinkCommit`, so that a line can be put beside the progress that Spark
    reports of the same batch (`batchId`) to a StreamingQueryListener.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    told: dict[str, Any] = {"table": uri, **asdict(commit)}
    told["seconds"] = {name: round(seconds, 6) for name, seconds in commit.seconds.items()}
    _log.info("lance_sink %s", json.dumps(told))


def size_of_files(fragments: Sequence[Fragment]) -> tuple[int, int]:
    """Return how many data files fragments have, and their bytes."""
    files = [file for each in fragments for file in each.files]
    return len(files), sum(each.size_bytes for each in files)
