"""Decides when a compaction alongside a stream pays off: `compact="auto"`.

A table that is written to pays with each batch for what its history has left behind: small
fragments and deleted rows, in which keys are looked up, and a manifest that each commit writes as a
whole. A round pays once, for the rows that it rewrites. So a round begins when there is enough to
gain for each row that it moves:

    small fragments    8 more than after the last round; a row is moved when its fragment doubles
    deleted rows       an eighth of a full fragment of them, or a twentieth of the table, more than
                       after the last round, in fragments of which they are a quarter: three rows
                       are moved for each deleted one
    manifest           twice as large as after the last round, and above 256 KB
    look-ups           they have taken longer than after the last round, by as much as the last
                       round took in total

None of these depends on the size of the table: the rows that are moved are in proportion to the
rows that have changed.
"""

import threading
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.snapshot.table_version import TableVersion

AUTO: Final = "auto"

BATCHES_BETWEEN_LOOKS: Final = 4
"""The number of batches between two checks of the table; the first batch is always checked."""

FAN_IN: Final = 8
"""How many small fragments are merged at once, at least."""

SMALL_MANIFEST: Final = 256 << 10
"""Bytes of fragments' messages that are no reason to compact."""

SECONDS_PER_ROW: Final = 2e-6
"""How long it takes to move a row, before a round has shown it."""


@dataclass(frozen=True)
class Remains:
    """What a table's history has left behind.

    Attributes:
        num_live: Rows of the table.
        num_small: Fragments with fewer live rows than wanted.
        num_deleted: Deleted rows in fragments of which they are a large share.
        manifest_bytes: The size of all fragments' messages.
    """

    num_live: int = 0
    num_small: int = 0
    num_deleted: int = 0
    manifest_bytes: int = 0

    def at_most(self, other: "Remains") -> "Remains":
        """Return the lesser of each: others compact a table, or overwrite it, too."""
        return Remains(
            min(self.num_live, other.num_live),
            min(self.num_small, other.num_small),
            min(self.num_deleted, other.num_deleted),
            min(self.manifest_bytes, other.manifest_bytes),
        )


@dataclass(frozen=True)
class Reason:
    """Why a round begins, and what it does.

    Attributes:
        text: A word or two.
        rules: What the round does.
    """

    text: str
    rules: CompactionRules


def remains_of(table: TableVersion, rules: CompactionRules) -> Remains:
    """Return what is left behind in a version; decodes no fragment, and reads nothing."""
    fragments = table.manifest.fragments
    numbers = fragments.numbers
    physical = numbers.physical_rows.astype(np.int64)
    deleted = numbers.num_deleted_rows.astype(np.int64)
    many_deleted = deleted > rules.max_deleted_fraction * physical
    return Remains(
        int((physical - deleted).sum()),
        int(np.count_nonzero(physical - deleted < rules.target_rows)),
        int(deleted[many_deleted].sum()),
        sum(map(len, fragments.raws)),
    )


class Automatic:
    """Decides when a round begins.

    Args:
        rules: What a round does.
    """

    def __init__(self, rules: CompactionRules) -> None:
        self._rules = rules
        self._before = Remains()
        self._lock = threading.Lock()
        self._num_batches = 0
        self._fastest: float | None = None
        self._excess_seconds = 0.0
        self._seconds_of_round: float | None = None

    def after_batch(self, lookup_seconds: float | None) -> bool:
        """Note a batch; return whether it is time to look at the table.

        Args:
            lookup_seconds: How long its keys were looked up; None if it had none.
        """
        with self._lock:
            if lookup_seconds is not None:
                self._fastest = min(lookup_seconds, self._fastest or lookup_seconds)
                self._excess_seconds += lookup_seconds - self._fastest
            is_time = self._num_batches % BATCHES_BETWEEN_LOOKS == 0
            self._num_batches += 1
            return is_time

    def reason(self, table: TableVersion) -> Reason | None:
        """Return why a round should begin on a version; None if it should not."""
        now, rules = remains_of(table, self._rules), self._rules
        before = self._before = self._before.at_most(now)
        tiers = replace(rules, fan_in=FAN_IN)
        many_deleted = max(1, min(rules.target_rows // 8, now.num_live // 20))
        if now.num_deleted - before.num_deleted >= many_deleted:
            return Reason("deleted rows", tiers)
        if now.num_small - before.num_small >= FAN_IN:
            return Reason("small fragments", tiers)
        if now.manifest_bytes > max(2 * before.manifest_bytes, SMALL_MANIFEST):
            return Reason("manifest", replace(rules, shortens_lineage=True))
        cost = self._seconds_of_round
        if self._excess_seconds > (SECONDS_PER_ROW * now.num_live if cost is None else cost):
            return Reason("look-ups", rules)
        return None

    def ended(self, table: TableVersion, seconds: float | None) -> None:
        """Note that a round has ended.

        Args:
            table: The version that it left behind.
            seconds: How long it wrote; None if it wrote nothing.
        """
        self._before = remains_of(table, self._rules)
        with self._lock:
            self._excess_seconds, self._fastest = 0.0, None
            if seconds is not None:
                self._seconds_of_round = seconds
