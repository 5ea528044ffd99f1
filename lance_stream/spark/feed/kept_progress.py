"""A stream's progress, kept at the table under the name of a consumer.

What is noted is the last version that the stream has finished with: cleanup keeps it, and all after
it. Until the first one is finished with, what the stream begins with must stay all the same: the
version of which a snapshot is read, or version 1 where the stream begins before it. It is held by a
tag of another kind, which goes with the first note (see `maintenance.consumers`).
"""

import logging
from contextlib import suppress

from lance_stream.errors import NotFoundError
from lance_stream.feed.positions import Position
from lance_stream.maintenance.consumers import (
    hold_beginning,
    let_go_of_beginning,
    read_progress,
    record_progress,
)
from lance_stream.snapshot.references import Refs

_log = logging.getLogger(__name__)


class KeptProgress:
    """The progress of one stream.

    Args:
        consumer: The name; None for a stream whose progress is not kept.
    """

    def __init__(self, consumer: str | None) -> None:
        self._consumer = consumer
        self._noted = 0
        self._held = 0

    def read(self, refs: Refs) -> int | None:
        """Return the last version that the consumer has finished with; None if it has none."""
        return None if self._consumer is None else read_progress(refs, self._consumer)

    def note(self, refs: Refs, position: Position) -> None:
        """Note that everything up to a position has been finished with."""
        if self._consumer is None or position.is_snapshot or position.version in (0, self._noted):
            return
        try:
            record_progress(refs, self._consumer, position.version)
        except NotFoundError as error:
            # Nothing is lost by that: the versions after it are what the stream needs.
            _log.warning("the progress of the consumer %r is not kept: %s", self._consumer, error)
        if self._held or not self._noted:
            let_go_of_beginning(refs, self._consumer)
        self._noted, self._held = position.version, 0

    def hold(self, refs: Refs, start: Position, end: Position) -> None:
        """Keep what a batch is read from where no version has been finished with.

        Args:
            refs: The table's, or its branch's.
            start: Where the batch begins.
            end: Where it ends; the version of a snapshot.
        """
        version = end.version if start.is_snapshot else int(start.version == 0)
        if self._consumer is None or version in (0, self._held):
            return
        # Where it is gone already, who plans the batch says what that means.
        with suppress(NotFoundError):
            hold_beginning(refs, self._consumer, version)
            self._held = version
