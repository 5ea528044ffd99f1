"""Offsets of a stream of changes, as a checkpoint stores them."""

import json
from typing import Any

import pytest

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.feed.positions import Position
from lance_stream.spark.feed.offsets import parse_offset, to_offset


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (
            Position(0, is_snapshot=True),
            '{"columns": null, "format": 3, "mark": "", "position": 0, "snapshot": true, '
            '"version": 0}',
        ),
        (
            Position(7, 1000, is_snapshot=True, mark="5f00", columns={}),
            '{"columns": {}, "format": 3, "mark": "5f00", "position": 1000, "snapshot": true, '
            '"version": 7}',
        ),
        (
            Position(7, 250, mark="5f00/9a00", columns={"`x`": 4, "`a`.`b`": None}),
            '{"columns": {"`a`.`b`": null, "`x`": 4}, "format": 3, "mark": "5f00/9a00", '
            '"position": 250, "snapshot": false, "version": 7}',
        ),
    ],
)
def test_offsets_have_a_stable_text(position: Position, text: str) -> None:
    assert json.dumps(to_offset(position)) == text
    read = parse_offset(json.loads(text))
    assert (read, read.columns) == (position, position.columns)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"format": 1, "snapshot": true, "version": 0}', Position(0, is_snapshot=True)),
        ('{"format": 1, "snapshot": false, "version": 7}', Position(7)),
        (
            '{"format": 2, "mark": "", "position": 0, "snapshot": true, "version": 0}',
            Position(0, is_snapshot=True),
        ),
        (
            '{"format": 2, "mark": "5f00", "position": 250, "snapshot": false, "version": 7}',
            Position(7, 250, mark="5f00"),
        ),
    ],
)
def test_offsets_of_earlier_formats_are_read(text: str, position: Position) -> None:
    read = parse_offset(json.loads(text))
    assert (read, read.columns) == (position, None)


def test_offsets_of_newer_releases_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="format 4"):
        parse_offset({"format": 4, "rows": 4})


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
        {"format": 1, "mark": "", "position": 0, "snapshot": False, "version": 7},
        {"format": 2, "snapshot": False, "version": 7},
        {"format": 2, "mark": "", "position": -1, "snapshot": False, "version": 7},
        {"format": 2, "mark": None, "position": 0, "snapshot": False, "version": 7},
        {"format": 3, "mark": "", "position": 0, "snapshot": False, "version": 7},
        {
            "columns": {"x": "4"},
            "format": 3,
            "mark": "",
            "position": 0,
            "snapshot": False,
            "version": 7,
        },
    ],
    ids=str,
)
def test_offsets_of_other_sources_are_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError, match="not an offset"):
        parse_offset(stored)
