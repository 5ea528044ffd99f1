"""Which lineage leaves the manifest, by the entries of a table's config."""

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.table.config.lineage_limits import (
    DEFAULT_INLINE_BYTES,
    INLINE_KEY,
    SPILL_KEY,
    check_entries,
    inline_bytes,
    inline_limit,
    is_misplaced,
)
from lance_stream.table.fragments.fragment import LINEAGE_FIELD_IDS, Fragment, LineageColumn

HIDDEN = LineageColumn(LINEAGE_FIELD_IDS["row_ids"], None)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({}, None),
        ({INLINE_KEY: "9"}, None),
        ({SPILL_KEY: "false", INLINE_KEY: "9"}, None),
        ({SPILL_KEY: "true"}, DEFAULT_INLINE_BYTES),
        ({SPILL_KEY: "TRUE", INLINE_KEY: "9"}, 9),
        ({SPILL_KEY: "true", INLINE_KEY: "+9"}, 9),
    ],
)
def test_only_the_switch_sets_a_limit(config: dict[str, str], limit: int | None) -> None:
    """Without the switch, readers need no feature flag, however long a sequence is."""
    check_entries({**config, "other": None})
    assert inline_limit(config) == limit


@pytest.mark.parametrize(
    "entries",
    [
        *({SPILL_KEY: value} for value in ("yes", "", "1")),
        *({INLINE_KEY: value} for value in ("", "-1", "1.5", "64k", "9" * 19)),
    ],
)
def test_invalid_limits_are_refused_when_set(entries: dict[str, str]) -> None:
    """Readers take any other switch for false, so a typing error would do nothing."""
    (key,) = entries
    with pytest.raises(InvalidInputError, match=f"{key} is "):
        check_entries(entries)
    check_entries(dict.fromkeys(entries))


def test_invalid_limits_fail_commits() -> None:
    """Another program may have set the entry without a check."""
    assert inline_limit({INLINE_KEY: "x"}) is None
    with pytest.raises(InvalidInputError, match="number of bytes"):
        inline_limit({SPILL_KEY: "true", INLINE_KEY: "x"})


@pytest.mark.parametrize(
    ("row_ids", "created", "limit", "expected"),
    [
        (b"12345", None, None, False),
        (b"12345", None, 5, False),
        (b"12345", None, 4, True),
        (None, b"12345", 4, True),
        (HIDDEN, b"1", None, True),
        (HIDDEN, b"1", 5, False),
        (HIDDEN, b"12345", 4, True),
        (None, None, 0, False),
    ],
)
def test_lineage_above_the_limit_is_misplaced(
    row_ids: bytes | LineageColumn | None, created: bytes | None, limit: int | None, expected: bool
) -> None:
    """With the switch off again, lineage returns from hidden columns to the manifest."""
    fragment = Fragment(1, (), 3, row_ids=row_ids, created_at_versions=created)
    assert is_misplaced(fragment, limit) is expected
    parts = [row_ids, created]
    assert inline_bytes(fragment) == sum(len(part) for part in parts if isinstance(part, bytes))
