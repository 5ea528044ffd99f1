"""The limit of lineage in a manifest, as a table's config sets it.

    lance.row_lineage.spill               "true": longer sequences go into data files
    lance.row_lineage.inline_max_bytes    up to how many bytes a sequence stays; default: 200 KB

Without the first entry, each sequence of row ids or row versions stays in the manifest, however
long. With it, a sequence above the limit that is written from then on becomes a hidden column of a
data file, and the table has a feature flag that readers must know.

Source:  measured on the reference, whose config entries these are.
"""

import re
from collections.abc import Mapping
from typing import Final

from lance_stream.errors import InvalidInputError
from lance_stream.table.fragments.fragment import Fragment

SPILL_KEY: Final = "lance.row_lineage.spill"
INLINE_KEY: Final = "lance.row_lineage.inline_max_bytes"

DEFAULT_INLINE_BYTES: Final = 200 << 10

_NUMBER: Final = re.compile(r"\+?[0-9]{1,18}")


def inline_limit(config: Mapping[str, str]) -> int | None:
    """Return up to how many bytes a sequence stays in the manifest; None without a limit.

    Raises:
        InvalidInputError: The config states a limit that is not a number of bytes.
    """
    if config.get(SPILL_KEY, "").lower() != "true":
        return None
    check_limit(config)
    return int(config.get(INLINE_KEY, DEFAULT_INLINE_BYTES))


def check_entries(entries: Mapping[str, str | None]) -> None:
    """Check what a user sets: any other word than `true` would do nothing, without a word.

    Raises:
        InvalidInputError: The switch is no truth value, or the limit not a number of bytes.
    """
    switch = entries.get(SPILL_KEY)
    if switch is not None and switch.lower() not in ("true", "false"):
        raise InvalidInputError(
            f"the config entry {SPILL_KEY} is {switch!r}, but should be 'true' or 'false'"
        )
    check_limit(entries)


def check_limit(entries: Mapping[str, str | None]) -> None:
    """Check the limit that entries of a config state, if they do.

    Raises:
        InvalidInputError: It is not a number of bytes.
    """
    stated = entries.get(INLINE_KEY)
    if stated is not None and not _NUMBER.fullmatch(stated):
        raise InvalidInputError(
            f"the config entry {INLINE_KEY} is {stated!r}, but should be a number of bytes, such "
            "as '65536'; set it with update_config, or remove it"
        )


def inline_bytes(fragment: Fragment) -> int:
    """Return how many bytes of lineage the message of a fragment holds."""
    return sum(len(sequence) for sequence in fragment.sequences if isinstance(sequence, bytes))


def is_misplaced(fragment: Fragment, limit: int | None) -> bool:
    """Return whether lineage is not where the config wants it.

    Args:
        fragment: The fragment.
        limit: See `inline_limit`.
    """
    if limit is None:
        return fragment.has_hidden_lineage
    return any(
        isinstance(sequence, bytes) and len(sequence) > limit for sequence in fragment.sequences
    )
