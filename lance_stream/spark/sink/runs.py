"""Which batches this process has put into which tables, by runs of streaming queries.

A run of a query computes each of its batches once: only another run replays a batch. So two calls
of sinks in one run, for one batch, one table and one name in the ledger, are given two DataFrames,
unless their rows are the same. That tells a second DataFrame from a replay also where the plan may
give other rows each time and the digest of the rows decides nothing.

Likewise, what one sink of a run has put into the table, or has found there as its own, was not put
there by another sink of the run under another name.

All this is known of runs in this process only, which is where foreachBatch runs. Without the run's
id (Spark Connect, threads of the user's own, calls outside of a query) nothing is remembered.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from lance_stream.caches import Cache
from lance_stream.write.row_digests import RowsDigest

MAX_BATCHES: Final = 1024
"""So many batches are remembered, the newest ones: one for each query and table suffices."""

_Key: TypeAlias = tuple[str, str, int]


@dataclass(eq=False)
class Call:
    """One call of a sink.

    Attributes:
        name: The stream's name in the ledger.
        others: The calls before it, or beside it, of the same run for the same batch and table.
        version: The version that has the batch; None as long as the call goes on.
        digest: Of the rows, if the batch was skipped; None if they are the ledger's.
    """

    name: str
    others: tuple["Call", ...] = ()
    version: int | None = None
    digest: RowsDigest | None = None

    @property
    def claimed(self) -> frozenset[int]:
        """The versions that have the batch's rows of other sinks."""
        return frozenset(
            each.version
            for each in self.others
            if each.version is not None and each.name != self.name
        )

    def is_second(self, digest: RowsDigest, noted: str) -> bool:
        """Say whether another call by the same name was given other rows.

        Args:
            digest: Of this call's rows.
            noted: The text of the digest that the ledger has.
        """
        if not digest.num_rows:
            return False
        return any(
            (noted if each.digest is None else each.digest.text) != digest.text
            for each in self.others
            if each.name == self.name
        )


@dataclass
class Calls:
    """The calls of this process."""

    _known: "Cache[_Key, list[Call]]" = field(default_factory=lambda: Cache(MAX_BATCHES))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def call(self, run: str, uri: str, batch_id: int, name: str) -> Iterator[Call]:
        """Remember a call, unless it fails, or ends without a version that has its rows.

        Args:
            run: The id of the query's run; empty if it is not known.
            uri: Where the table lies.
            batch_id: The batch's number.
            name: The stream's name in the ledger.
        """
        if not run:
            yield Call(name)
            return
        key = run, _place(uri), batch_id
        with self._lock:
            calls = self._known.get_or_make(key, list)
            call = Call(name, tuple(calls))
            calls.append(call)
        try:
            yield call
        finally:
            if call.version is None or (call.digest is not None and not call.digest.num_rows):
                with self._lock:
                    calls.remove(call)


CALLS: Final = Calls()


def _place(uri: str) -> str:
    """Return the same text for a table's URI with and without a slash, and for paths to it."""
    text = uri if ":/" in uri else os.path.realpath(Path(uri).expanduser())
    return text.rstrip("/")
