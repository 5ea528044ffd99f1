"""The settings of a reader of the change feed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lance_stream.arguments import as_flag
from lance_stream.errors import InvalidInputError

NO_DEDUPLICATION: Final = "none"
NET_CHANGES: Final = "netChanges"

DEDUPLICATION_MODES: Final = (NO_DEDUPLICATION, NET_CHANGES)


@dataclass(frozen=True)
class FeedRules:
    """Which changes a reader of the feed gets, and in which form.

    Attributes:
        columns: Names or paths; None for all columns of the last version.
        deduplication_mode: "none" for the changes of each version, or "netChanges" to compare
            only the ends of the interval.
        pre_images: Whether updates include the pre-image.
        compute_updates: Whether updates are reported as updates; otherwise as a delete and an
            insert.
        column_backfills: Whether rows that only got values in a new column count as updated.
    """

    columns: Sequence[str] | None = None
    deduplication_mode: str = NO_DEDUPLICATION
    pre_images: bool = True
    compute_updates: bool = True
    column_backfills: bool = True

    def __post_init__(self) -> None:
        """Validate the settings.

        Raises:
            InvalidInputError: The mode is unknown, or a flag is neither True nor False.
        """
        if self.deduplication_mode not in DEDUPLICATION_MODES:
            raise InvalidInputError(
                f"deduplication_mode must be one of {', '.join(DEDUPLICATION_MODES)}, not "
                f"{self.deduplication_mode!r}"
            )
        for name in ("pre_images", "compute_updates", "column_backfills"):
            as_flag(name, getattr(self, name))

    @property
    def is_net(self) -> bool:
        """Whether only the ends of the interval are compared."""
        return self.deduplication_mode == NET_CHANGES
