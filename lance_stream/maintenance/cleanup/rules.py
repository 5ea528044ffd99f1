"""What a cleanup may remove: the user's ages and numbers, checked."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lance_stream.arguments import as_flag
from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError

DEFAULT_AGE: Final = timedelta(days=14)
"""The default age of versions to remove."""

GRACE: Final = timedelta(days=7)
"""The age from which a file is certainly not about to be committed."""


@dataclass(frozen=True, slots=True)
class CleanupRules:
    """What to remove.

    Attributes:
        older_than: The minimum age of a version to remove; None for any age.
        retain_versions: The number of newest versions to keep, regardless of age; at least 1.
        delete_unverified: Whether to delete never-referenced files of any age, because the caller
            knows that there are no writers.
        expire_consumers: The time without progress after which a consumer with unread versions
            expires and its tag is deleted; None for never.
    """

    older_than: timedelta | None = DEFAULT_AGE
    retain_versions: int = 1
    delete_unverified: bool = False
    expire_consumers: timedelta | None = None

    def __post_init__(self) -> None:
        as_flag("delete_unverified", self.delete_unverified)
        if self.older_than is not None and self.older_than < timedelta(0):
            raise InvalidInputError(f"versions cannot be older than {self.older_than}")
        number = self.retain_versions
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidInputError(
                f"retain_versions must be an integer of at least 1, not {number!r}: the newest "
                "version is always kept"
            )


def as_rules(
    older_than: str | timedelta | None,
    retain_versions: int | None,
    *,
    delete_unverified: bool,
    expire_consumers: str | timedelta | None,
) -> CleanupRules:
    """Return the rules for a user's arguments; see `Dataset.cleanup`.

    Raises:
        InvalidInputError: An age or number is invalid.
    """
    age = DEFAULT_AGE if retain_versions is None else None
    return CleanupRules(
        age if older_than is None else parse_age(older_than, may_be_zero=True),
        1 if retain_versions is None else retain_versions,
        delete_unverified,
        None if expire_consumers is None else parse_age(expire_consumers),
    )
