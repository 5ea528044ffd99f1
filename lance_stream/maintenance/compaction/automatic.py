"""Decides when a compaction alongside a stream is worthwhile: `compact="auto"`.

Small fragments and deleted rows slow down the key lookups of every batch, and a long manifest slows
down every commit. A round costs time once, in proportion to the rows that it rewrites. So a round
begins when one of these has grown enough since the last round:

    small fragments    by 8 fragments; a row is rewritten when its fragment has doubled in size
    deleted rows       by an eighth of a full fragment, or by a twentieth of the table if that is
                       less. Only fragments with more than a quarter of their rows deleted count, so
                       at most three live rows are rewritten per deleted row
    manifest           to more than twice its size, and more than 256 KB
    lookups            the time by which lookups were slower than the fastest one exceeds, in total,
                       the duration of the last round

So the number of rewritten rows is proportional to the number of changed rows, whatever the size of
the table.
"""

import threading
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.snapshot.table_version import TableVersion

AUTO: Final = "auto"

BATCHES_BETWEEN_CHECKS: Final = 4
"""The number of batches between two checks of the table; the first batch is always checked."""

FAN_IN: Final = 8
"""The minimum number of small fragments that are merged at once."""

SMALL_MANIFEST: Final = 256 << 10
"""The size in bytes of all fragments' messages up to which the manifest is not a reason."""

SECONDS_PER_ROW: Final = 2e-6
"""The assumed time to rewrite a row, until a round has been measured."""


@dataclass(frozen=True)
class Accumulation:
    """The small fragments and deleted rows that have accumulated in a table.

    Attributes:
        num_live: The number of live rows of the table.
        num_small: The number of fragments with fewer live rows than the target.
        num_deleted: The number of deleted rows in fragments in which they are a large share.
        manifest_bytes: The size of all fragments' messages.
    """

    num_live: int = 0
    num_small: int = 0
    num_deleted: int = 0
    manifest_bytes: int = 0

    def at_most(self, other: "Accumulation") -> "Accumulation":
        """Return the minimum of all numbers: other writers may compact or overwrite a table."""
        return Accumulation(
            min(self.num_live, other.num_live),
            min(self.num_small, other.num_small),
            min(self.num_deleted, other.num_deleted),
            min(self.manifest_bytes, other.manifest_bytes),
        )


@dataclass(frozen=True)
class Reason:
    """The reason to begin a round, and the rules of the round.

    Attributes:
        text: The reason in one or two words, for logs.
        rules: The rules of the round.
    """

    text: str
    rules: CompactionRules


def accumulation_of(table: TableVersion, rules: CompactionRules) -> Accumulation:
    """Return what has accumulated in a version; sends no request and decodes no fragment."""
    fragments = table.manifest.fragments
    numbers = fragments.numbers
    physical = numbers.physical_rows.astype(np.int64)
    deleted = numbers.num_deleted_rows.astype(np.int64)
    many_deleted = deleted > rules.max_deleted_fraction * physical
    return Accumulation(
        int((physical - deleted).sum()),
        int(np.count_nonzero(physical - deleted < rules.target_rows)),
        int(deleted[many_deleted].sum()),
        sum(map(len, fragments.raws)),
    )


class CompactionTrigger:
    """Decides when a round begins.

    Args:
        rules: The rules of a round.
    """

    def __init__(self, rules: CompactionRules) -> None:
        self._rules = rules
        self._before = Accumulation()
        self._lock = threading.Lock()
        self._num_batches = 0
        self._fastest: float | None = None
        self._excess_seconds = 0.0
        self._seconds_of_round: float | None = None

    def after_batch(self, lookup_seconds: float | None) -> bool:
        """Record a batch; return whether it is time to check the table.

        Args:
            lookup_seconds: The duration of its key lookups; None without any.
        """
        with self._lock:
            if lookup_seconds is not None:
                self._fastest = min(lookup_seconds, self._fastest or lookup_seconds)
                self._excess_seconds += lookup_seconds - self._fastest
            is_due = self._num_batches % BATCHES_BETWEEN_CHECKS == 0
            self._num_batches += 1
            return is_due

    def reason(self, table: TableVersion) -> Reason | None:
        """Return the reason to begin a round on a version; None if there is none."""
        current, rules = accumulation_of(table, self._rules), self._rules
        before = self._before = self._before.at_most(current)
        tiers = replace(rules, fan_in=FAN_IN)
        many_deleted = max(1, min(rules.target_rows // 8, current.num_live // 20))
        if current.num_deleted - before.num_deleted >= many_deleted:
            return Reason("deleted rows", tiers)
        if current.num_small - before.num_small >= FAN_IN:
            return Reason("small fragments", tiers)
        if current.manifest_bytes > max(2 * before.manifest_bytes, SMALL_MANIFEST):
            return Reason("manifest", replace(rules, shortens_lineage=True))
        cost = self._seconds_of_round
        if self._excess_seconds > (SECONDS_PER_ROW * current.num_live if cost is None else cost):
            return Reason("lookups", rules)
        return None

    def record_round(self, table: TableVersion, seconds: float | None) -> None:
        """Record that a round has ended.

        Args:
            table: The version after the round.
            seconds: How long the round wrote files; None if it wrote none.
        """
        self._before = accumulation_of(table, self._rules)
        with self._lock:
            self._excess_seconds, self._fastest = 0.0, None
            if seconds is not None:
                self._seconds_of_round = seconds
