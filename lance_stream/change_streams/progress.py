"""A reader's progress, stored with the table under the name of a consumer.

The table records the last version that the reader has finished; cleanup keeps that version and all
later ones. Until the first record, cleanup must keep the version at which the reader starts: the
version of its snapshot, or version 1 if it starts before the first version. A tag of another kind
protects that version, and is removed with the first record (see `maintenance.consumers`).

Spark's streams store exact positions in their checkpoints. A reader without a checkpoint stores
them with the table.
"""

import json
import logging
from contextlib import suppress

from lance_stream.errors import CorruptDataError, NotFoundError
from lance_stream.feed.following.offsets import parse_offset, to_offset
from lance_stream.feed.following.positions import Position
from lance_stream.maintenance.consumers import (
    protect_start,
    read_position,
    read_progress,
    read_skipped_from,
    record_progress,
    release_start,
)
from lance_stream.snapshot.references import Refs

_log = logging.getLogger(__name__)


def position_text(position: Position) -> str:
    """Return a position as a string."""
    return json.dumps(to_offset(position))


def parse_position(text: str) -> Position:
    """Parse the string form of a position.

    Raises:
        CorruptDataError: It is not a position.
        UnsupportedFeatureError: A newer release of lance-stream wrote it.
    """
    try:
        stored = json.loads(text)
        if isinstance(stored, dict):
            return parse_offset(stored)
    except (ValueError, CorruptDataError):
        pass
    raise CorruptDataError(
        f"{text[:200]!r} is not a position of a change stream. Pass the `position` of a batch"
    )


class ConsumerProgress:
    """The progress of one reader.

    Args:
        consumer: The name of the consumer; None to store no progress.
        keeps_positions: Whether to store exact positions in addition to versions.
    """

    def __init__(self, consumer: str | None, *, keeps_positions: bool = False) -> None:
        self._consumer = consumer
        self._keeps_positions = keeps_positions
        self._recorded: tuple[int, str | None] = (0, None)
        self._protected_version = 0

    def read(self, refs: Refs) -> int | None:
        """Return the last version that the consumer has finished; None without a record."""
        return None if self._consumer is None else read_progress(refs, self._consumer)

    def read_position(self, refs: Refs) -> Position | None:
        """Return the position that the consumer has stored; None without a record."""
        text = None if self._consumer is None else read_position(refs, self._consumer)
        return None if text is None else parse_position(text)

    def position_after_skipped(self, refs: Refs, skipped_from: str) -> Position | None:
        """Return the stored position if the reader had no rows since an earlier one.

        Args:
            refs: The references of the table or branch.
            skipped_from: The earlier position, as recorded.
        """
        if self._consumer is None or read_skipped_from(refs, self._consumer) != skipped_from:
            return None
        return self.read_position(refs)

    def record_position(
        self, refs: Refs, position: Position, skipped_from: str | None = None
    ) -> None:
        """Record that the reader has finished everything up to a position.

        Args:
            refs: The references of the table or branch.
            position: The position.
            skipped_from: The position up to which it had its last rows, if that is another one.
        """
        text = position_text(position) if self._keeps_positions else None
        progress = (position.version, text)
        if self._consumer is None or position.version == 0 or progress == self._recorded:
            return
        try:
            if not position.is_snapshot:
                record_progress(
                    refs, self._consumer, position.version, position=text, skipped_from=skipped_from
                )
            elif text is not None:
                protect_start(refs, self._consumer, position.version, position=text)
                self._protected_version = position.version
        except NotFoundError as error:
            # The reader only needs later versions; or the next batch of its snapshot reports why.
            _log.warning("could not store the progress of consumer %r: %s", self._consumer, error)
        if position.is_snapshot:
            return
        if self._protected_version or not self._recorded[0]:
            release_start(refs, self._consumer)
        self._recorded, self._protected_version = progress, 0

    def protect_versions(self, refs: Refs, start: Position, end: Position) -> None:
        """Protect the version at which the reader starts, until it has finished a version.

        Args:
            refs: The references of the table or branch.
            start: The start of the batch.
            end: The end of the batch.
        """
        version = end.version if start.is_snapshot else int(start.version == 0)
        if self._consumer is None or version in (0, self._protected_version):
            return
        # If the version is already missing, planning the batch raises the error.
        is_resumed = self._keeps_positions and start.is_snapshot and start.num_delivered
        text = position_text(start) if is_resumed else None
        with suppress(NotFoundError):
            protect_start(refs, self._consumer, version, position=text)
            self._protected_version = version
