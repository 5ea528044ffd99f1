"""The config entries that limit the size of lineage in a manifest.

    lance.row_lineage.spill               "true": move longer sequences to data files
    lance.row_lineage.inline_max_bytes    the limit in bytes per sequence; default: 200 KiB

Without the first entry, sequences of row ids and row versions are in the manifest, however long
they are. With it, new sequences above the limit become hidden columns of data files, and the table
has a feature flag that readers must support.

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
    """Return the maximum size in bytes of a sequence in the manifest; None without a limit.

    Raises:
        InvalidInputError: The limit is not a number of bytes.
    """
    if config.get(SPILL_KEY, "").lower() != "true":
        return None
    check_limit(config)
    return int(config.get(INLINE_KEY, DEFAULT_INLINE_BYTES))


def check_entries(entries: Mapping[str, str | None]) -> None:
    """Check the entries that a user sets: any value other than `true` would silently do nothing.

    Raises:
        InvalidInputError: The switch is not true or false, or the limit is not a number of bytes.
    """
    switch = entries.get(SPILL_KEY)
    if switch is not None and switch.lower() not in ("true", "false"):
        raise InvalidInputError(
            f"the config entry {SPILL_KEY} is {switch!r}, but must be 'true' or 'false'"
        )
    check_limit(entries)


def check_limit(entries: Mapping[str, str | None]) -> None:
    """Check the limit in config entries, if there is one.

    Raises:
        InvalidInputError: It is not a number of bytes.
    """
    limit = entries.get(INLINE_KEY)
    if limit is not None and not _NUMBER.fullmatch(limit):
        raise InvalidInputError(
            f"the config entry {INLINE_KEY} is {limit!r}, but must be a number of bytes, such as "
            "'65536'; set it with update_config, or remove it"
        )


def inline_bytes(fragment: Fragment) -> int:
    """Return the number of bytes of lineage in a fragment's message."""
    return sum(len(sequence) for sequence in fragment.sequences if isinstance(sequence, bytes))


def is_misplaced(fragment: Fragment, limit: int | None) -> bool:
    """Return whether a fragment's lineage should be moved, according to the config.

    Args:
        fragment: The fragment.
        limit: See `inline_limit`.
    """
    if limit is None:
        return fragment.has_hidden_lineage
    return any(
        isinstance(sequence, bytes) and len(sequence) > limit for sequence in fragment.sequences
    )
