"""The page about checkpoints shows an offset as a stream stores it."""

import json
import re
from pathlib import Path

from lance_stream.feed.following.offsets import parse_offset, to_offset

PAGE = Path(__file__).parents[3] / "checkpoints" / "README.md"


def test_the_page_shows_current_offsets() -> None:
    """The format has changed four times, and readers compare their checkpoints with this page."""
    (text,) = re.findall(r"^```json\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    example = json.loads(text)
    assert json.dumps(to_offset(parse_offset(example))) == text
