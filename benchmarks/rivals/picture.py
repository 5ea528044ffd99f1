"""A bar chart as SVG, legible on light and dark pages."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, LABELS, ROW, HEAD, FOOT = 760, 210, 22, 34, 12
FIGURES = 70  # to the right of the longest bar


class Bar(NamedTuple):
    """One bar.

    Attributes:
        label: Its label.
        value: Its time, as a multiple of ours.
        is_ours: Whether it is our own bar.
    """

    label: str
    value: float
    is_ours: bool


STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #222 }
  .head { font-weight: 600 }
  .figure { font-variant-numeric: tabular-nums }
  rect { fill: #9aa5b1 }
  rect.ours { fill: #d9622b }
"""


def draw(groups: Mapping[str, Sequence[Bar]]) -> str:
    """Return an SVG of groups of bars; each group has its own scale.

    Args:
        groups: Bars by heading.
    """
    parts: list[str] = []
    y = 0
    for heading, bars in groups.items():
        parts.append(
            f'<text class="head" x="4" y="{y + 22}">{escape(heading)}: time, as a multiple of '
            "lance-stream's</text>"
        )
        y += HEAD
        longest = max(bar.value for bar in bars)
        for bar in bars:
            width = max(2.0, (WIDTH - LABELS - FIGURES) * bar.value / longest)
            kind = ' class="ours"' if bar.is_ours else ""
            middle = y + ROW / 2
            parts += [
                f'<text x="{LABELS - 8}" y="{middle + 4:g}" text-anchor="end">'
                f"{escape(bar.label)}</text>",
                f'<rect{kind} x="{LABELS}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/>',
                f'<text class="figure" x="{LABELS + width + 6:.1f}" y="{middle + 4:g}">'
                f"{bar.value:.1f}</text>",
            ]
            y += ROW
        y += FOOT
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" role="img" aria-label="Time of streaming sinks as multiples of '
        f"lance-stream's\">\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )
