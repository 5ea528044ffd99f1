"""A stream's progress, stored with the table under the name of a consumer.

The table records the last version that the stream has finished: cleanup keeps it and all later
ones. Until then, cleanup must also keep the stream's first version: the version of the snapshot, or
version 1 if the stream starts before it. A tag of another kind holds that version, and is removed
with the first record (see `maintenance.consumers`).
"""

import logging
from contextlib import suppress

from lance_stream.errors import NotFoundError
from lance_stream.feed.following.positions import Position
from lance_stream.maintenance.consumers import (
    hold_beginning,
    read_progress,
    record_progress,
    release_beginning,
)
from lance_stream.snapshot.references import Refs

_log = logging.getLogger(__name__)


class ConsumerProgress:
    """The progress of one stream.

    Args:
        consumer: The name; None for a stream whose progress is not stored.
    """

    def __init__(self, consumer: str | None) -> None:
        self._consumer = consumer
        self._noted = 0
        self._held_version = 0

    def read(self, refs: Refs) -> int | None:
        """Return the last version that the consumer has finished; None if there is none."""
        return None if self._consumer is None else read_progress(refs, self._consumer)

    def note(self, refs: Refs, position: Position) -> None:
        """Record that everything up to a position has been finished."""
        if self._consumer is None or position.is_snapshot or position.version in (0, self._noted):
            return
        try:
            record_progress(refs, self._consumer, position.version)
        except NotFoundError as error:
            # No data is lost: the stream needs only the versions after it.
            _log.warning("the progress of the consumer %r is not stored: %s", self._consumer, error)
        if self._held_version or not self._noted:
            release_beginning(refs, self._consumer)
        self._noted, self._held_version = position.version, 0

    def hold(self, refs: Refs, start: Position, end: Position) -> None:
        """Protect the version that a batch reads until a first version has been finished.

        Args:
            refs: The table's, or its branch's.
            start: The start of the batch.
            end: Its end; the version of a snapshot.
        """
        version = end.version if start.is_snapshot else int(start.version == 0)
        if self._consumer is None or version in (0, self._held_version):
            return
        # If it is missing already, planning the batch raises the error.
        with suppress(NotFoundError):
            hold_beginning(refs, self._consumer, version)
            self._held_version = version
