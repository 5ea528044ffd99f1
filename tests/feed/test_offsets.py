"""Offsets of a stream of changes, as a checkpoint stores them."""

import json
from typing import Any

import pytest

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.feed.following.offsets import parse_offset, to_offset
from lance_stream.feed.following.positions import Position, joined_marks


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (
            Position(0, is_snapshot=True),
            '{"columns": null, "format": 4, "mark": "", "position": 0, "snapshot": true, '
            '"version": 0}',
        ),
        (
            Position(7, 1000, is_snapshot=True, mark="5f00", columns={}),
            '{"columns": {}, "format": 4, "mark": "5f00", "position": 1000, "snapshot": true, '
            '"version": 7}',
        ),
        (
            Position(7, 250, mark="5f00/9a00", columns={"`x`": 4, "`a`.`b`": None}),
            '{"columns": {"`a`.`b`": null, "`x`": 4}, "format": 4, "mark": "5f00/9a00", '
            '"position": 250, "snapshot": false, "version": 7}',
        ),
    ],
)
def test_offsets_have_a_stable_text(position: Position, text: str) -> None:
    """Spark compares and stores offsets as text, so the order of keys and the spelling are part of
    the format.
    """
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
            Position(7, 250, mark="5f00", counts_pairs=True),
        ),
    ],
)
def test_offsets_of_earlier_formats_are_read(text: str, position: Position) -> None:
    """A query must continue from a checkpoint of any earlier release."""
    read = parse_offset(json.loads(text))
    assert (read, read.columns) == (position, None)


@pytest.mark.parametrize(
    ("position", "is_snapshot", "counts_pairs"),
    [(250, False, True), (0, False, False), (250, True, False)],
)
def test_pairs_are_counted_in_format_3(
    position: int, is_snapshot: bool, counts_pairs: bool
) -> None:
    """A position inside a version counts differently since format 3, all other positions are the
    same.
    """
    stored = {"columns": {}, "mark": "", "position": position, "snapshot": is_snapshot}
    read = parse_offset({**stored, "format": 3, "version": 7})
    assert read == Position(7, position, is_snapshot, counts_pairs=counts_pairs)
    assert read.columns == {}


@pytest.mark.parametrize(
    "columns",
    [[], ["x"], 5, "x", {"x": -1}, {"x": True}, {"x": "y"}, {"x": 1.5}, {5: 1}, {5: None}],
)
def test_damaged_columns_are_refused(columns: Any) -> None:
    """A wrong column would be read under the name of another one."""
    stored = {"format": 4, "mark": "", "position": 0, "snapshot": False, "version": 7}
    assert parse_offset({**stored, "columns": {"x": 1, "y": None}}).columns == {"x": 1, "y": None}
    with pytest.raises(CorruptDataError, match="is not an offset"):
        parse_offset({**stored, "columns": columns})


def test_marks_of_positions_are_joined() -> None:
    """A position inside a version that does not exist has the mark of the previous one only."""
    assert joined_marks("5f00", "9a00") == "5f00/9a00"
    assert joined_marks("5f00", "") == "5f00"


def test_offsets_of_newer_releases_are_refused() -> None:
    """Guessing the meaning of a newer offset could skip or repeat changes after a downgrade."""
    with pytest.raises(UnsupportedFeatureError, match="format 5"):
        parse_offset({"format": 5, "rows": 4})


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
        {"format": 4, "mark": "", "position": 0, "snapshot": False, "version": 7},
        {
            "columns": {"x": "4"},
            "format": 4,
            "mark": "",
            "position": 0,
            "snapshot": False,
            "version": 7,
        },
    ],
    ids=str,
)
def test_offsets_of_other_sources_are_refused(stored: dict[str, Any]) -> None:
    """The checkpoint of another source must not be read as a position in this table."""
    with pytest.raises(CorruptDataError, match="not an offset"):
        parse_offset(stored)
