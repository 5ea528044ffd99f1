"""Background maintenance by a stream's writer: compactions, and index updates.

Both take turns with the batches to commit. They never run at the same time, because a compaction
would move rows that an index is being built on.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lance_stream.maintenance.compaction.background import BackgroundCompaction, Turns
from lance_stream.maintenance.compaction.rewrites import WriteTasks
from lance_stream.maintenance.indices.background import BackgroundIndexing
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.snapshot.table_version import TableVersion


class Upkeep:
    """Compacts a table and keeps its indices up to date. A pickled copy starts without state.

    Args:
        compact: When a compaction begins, as in `BackgroundCompaction`; None for never.
        fresh_indices: When indices are updated; None for never.

    Attributes:
        compaction: Runs the compactions; None if disabled.
        indexing: Runs the index updates; None if disabled.
    """

    def __init__(self, compact: int | str | None, fresh_indices: RefreshPolicy | None) -> None:
        self._arguments = compact, fresh_indices
        self._turns = Turns()
        self.compaction = (
            None if compact is None else BackgroundCompaction(compact, turns=self._turns)
        )
        self.indexing = (
            None if fresh_indices is None else BackgroundIndexing(fresh_indices, self._turns)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def batch(self) -> AbstractContextManager[None]:
        """Return a context in which a batch is written; commits of upkeep wait for its end."""
        return self._turns.of_batch()

    def after_batch(
        self,
        batch_id: int,
        open_newest: Callable[[], TableVersion],
        write: WriteTasks | None = None,
        lookup_seconds: float | None = None,
    ) -> None:
        """Start the work that is due after a batch that created a version.

        The arguments are those of `BackgroundCompaction.after_batch`.
        """
        if self.compaction is not None:
            self.compaction.after_batch(batch_id, open_newest, write, lookup_seconds)
        if self.indexing is not None:
            self.indexing.after_batch(open_newest)

    def take_outcomes(self) -> dict[str, str]:
        """Return the outcomes of index updates since the last call, by index name."""
        return {} if self.indexing is None else self.indexing.take_outcomes()
