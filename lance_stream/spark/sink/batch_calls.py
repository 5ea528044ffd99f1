"""The sink's calls in this process: which batches they committed to which tables, by run.

A run of a query computes each of its batches once: only another run replays a batch. So two calls
of sinks in one run, for the same batch, table and app id, received two different DataFrames,
unless their rows are the same. This tells a second DataFrame from a replay even if the plan is
nondeterministic, so that digests prove nothing.

Likewise, a version that one sink of a run committed, or found to be its own, was not committed by
another sink of the run under another app id.

Only runs in this process are known, which is where foreachBatch runs. Without the run's id (Spark
Connect, the user's own threads, calls outside of a query) nothing is remembered.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from lance_stream.caches import Cache
from lance_stream.ledger.row_digests import RowsDigest

MAX_BATCHES: Final = 1024
"""How many of the newest batches are remembered; one for each query and table suffices."""

_Key: TypeAlias = tuple[str, str, int]


@dataclass(eq=False)
class BatchCall:
    """One call of a sink.

    Attributes:
        name: The stream's app id.
        others: Earlier and concurrent calls of the same run for the same batch and table.
        version: The version that contains the batch; None while the call is running.
        digest: Of the rows, if the batch was skipped; None if they are the ledger's.
    """

    name: str
    others: tuple["BatchCall", ...] = ()
    version: int | None = None
    digest: RowsDigest | None = None

    @property
    def claimed(self) -> frozenset[int]:
        """The versions that other sinks created for this batch."""
        return frozenset(
            other.version
            for other in self.others
            if other.version is not None and other.name != self.name
        )

    def is_second(self, digest: RowsDigest, recorded: str) -> bool:
        """Return whether another call with the same app id received other rows.

        Args:
            digest: Of this call's rows.
            recorded: The text of the digest in the ledger.
        """
        if not digest.num_rows:
            return False
        return any(
            (recorded if other.digest is None else other.digest.text) != digest.text
            for other in self.others
            if other.name == self.name
        )


@dataclass
class BatchCalls:
    """The calls of this process."""

    _calls: "Cache[_Key, list[BatchCall]]" = field(default_factory=lambda: Cache(MAX_BATCHES))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def call(self, run: str, uri: str, batch_id: int, name: str) -> Iterator[BatchCall]:
        """Remember a call, unless it fails or ends without a version that contains its rows.

        Args:
            run: The id of the query's run; empty if it is unknown.
            uri: The table's location.
            batch_id: The batch id.
            name: The stream's app id.
        """
        if not run:
            yield BatchCall(name)
            return
        key = run, _normalized(uri), batch_id
        with self._lock:
            calls = self._calls.get_or_make(key, list)
            call = BatchCall(name, tuple(calls))
            calls.append(call)
        try:
            yield call
        finally:
            if call.version is None or (call.digest is not None and not call.digest.num_rows):
                with self._lock:
                    calls.remove(call)


BATCH_CALLS: Final = BatchCalls()


def _normalized(uri: str) -> str:
    """Return the same text for a table's URI with and without a final slash, and for its paths."""
    text = uri if ":/" in uri else os.path.realpath(Path(uri).expanduser())
    return text.rstrip("/")
