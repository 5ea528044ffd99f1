"""The outcome of a micro-batch: for the user's program, and as a line of the log."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from lance_stream.read.take import take
from lance_stream.schema.vectors import common_vector_length
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment

_log = logging.getLogger("lance_stream.sink")

_SAMPLED_ROWS: Final = 100
"""How many rows of a new table are checked for vectors."""


@dataclass(frozen=True)
class SinkCommit:
    """The outcome of a micro-batch.

    Attributes:
        batch_id: The batch id.
        app_id: The stream's id in the table's ledger.
        version: The version that contains the batch; None if there was nothing to do.
        skipped: Whether the batch was already committed, so that nothing was written.
        rows_differ: Whether the batch was skipped although its rows differ from the committed ones:
            the query's plan is nondeterministic.
        rows_in: Rows of the batch; 0 if it was skipped.
        rows_inserted: Rows that were inserted.
        rows_updated: Rows that were updated and kept their row ids.
        rows_deleted: Rows of the table that were deleted. A delete of a key that the table lacks
            is not counted here, nor in any other count except `deletes_remembered`.
        rows_unchanged: Rows with unchanged values that were not rewritten (`skip_unchanged`).
        rows_late: Rows that were ignored because of `sequence_by`: superseded by a newer row of
            their key in the same batch, older than the stored row, or no newer than a remembered
            delete.
        rows_ignored: Updates and inserts that the rules excluded (`when_matched`,
            `when_not_matched`).
        rows_quarantined: Rows that were quarantined (`bad_rows`), by reason: the name of the check,
            "null key", "null" or "type".
        deletes_remembered: Deletes of the batch that became tombstones (`tombstones`).
        num_files: Number of data files written.
        bytes_written: The size of these files in bytes.
        attempts: Attempts that the commit took; 1 without conflicts.
        seconds: Duration of each phase: "plan" (the ledger, the schema), "collect" (an upsert's
            rows to the driver), "scan" (their keys in the table), "write", "commit".
        table: The table's location.
        indices: The results of index updates since the last batch (`keep_indices_fresh`), by
            name of the index: "fresh", or the reason why it is not up to date. Usually empty.
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
    rows_ignored: int = 0
    rows_quarantined: Mapping[str, int] = field(default_factory=dict)
    deletes_remembered: int = 0
    num_files: int = 0
    bytes_written: int = 0
    attempts: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    table: str = ""
    indices: Mapping[str, str] = field(default_factory=dict)


def log_commit(commit: SinkCommit) -> None:
    """Write one line to the log "lance_stream.sink": the table and the commit, as JSON.

    The names are those of `SinkCommit`. Its `batch_id` matches the `batchId` in the progress that
    Spark reports to a StreamingQueryListener.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    entry: dict[str, Any] = {"table": commit.table, **asdict(commit)}
    entry["seconds"] = {name: round(seconds, 6) for name, seconds in commit.seconds.items()}
    _log.info("lance_sink %s", json.dumps(entry))


def hint_at_vectors(table: TableVersion, columns: Sequence[str]) -> None:
    """Log a warning if list columns probably contain vectors, but are not stored as such."""
    num_rows = min(int(table.row_counts.live.sum()), _SAMPLED_ROWS)
    rows = take(table, row_offsets=range(num_rows), columns=columns)
    sizes = {name: common_vector_length(rows.column(name)) for name in columns}
    vectors = {name: size for name, size in sizes.items() if size is not None}
    if vectors:
        _log.warning(
            "%s: all lists in %s have one length, so they are probably vectors, but searches and "
            "indices need fixed-size lists. Create the table with create_options={'vectors': %r}",
            table.uri,
            ", ".join(vectors),
            vectors,
        )


def notify(on_commit: Callable[[SinkCommit], object] | None, commit: SinkCommit) -> None:
    """Pass a commit to the user's function. An error in it is logged and never raised.

    The batch is committed: an error would make Spark repeat it, and stop the query.
    """
    if on_commit is None:
        return
    try:
        on_commit(commit)
    except Exception:
        _log.exception(
            "on_commit failed for batch %d of %s; the batch is committed, and the stream continues",
            commit.batch_id,
            commit.table,
        )


def size_of_files(fragments: Sequence[Fragment]) -> tuple[int, int]:
    """Return the number of data files of fragments, and their bytes."""
    files = [file for fragment in fragments for file in fragment.files]
    return len(files), sum(file.size_bytes for file in files)
