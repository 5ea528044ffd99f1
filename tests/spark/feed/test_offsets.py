"""Offsets of a stream of changes, as they stand in a checkpoint."""

import json
from typing import Any

import pytest

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.spark.feed.offsets import FeedOffset, parse_offset


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (FeedOffset(0, snapshot=True), '{"format": 1, "snapshot": true, "version": 0}'),
        (FeedOffset(7), '{"format": 1, "snapshot": false, "version": 7}'),
    ],
)
def test_an_offset_has_one_text_for_ever(offset: FeedOffset, text: str) -> None:
    assert json.dumps(offset.to_json()) == text
    assert parse_offset(json.loads(text)) == offset


def test_an_offset_of_a_newer_release_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="format 2"):
        parse_offset({"format": 2, "position": 4})


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"offset": 5},
        {"format": 1, "version": 7},
        {"format": 1, "snapshot": 1, "version": 7},
        {"format": 1, "snapshot": False, "version": -1},
        {"format": 1, "snapshot": False, "version": True},
        {"format": 1, "snapshot": False, "version": 7, "row": 4},
        {"format": True, "snapshot": False, "version": 7},
    ],
    ids=str,
)
def test_an_offset_of_another_source_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError, match="no offset"):
        parse_offset(stored)
