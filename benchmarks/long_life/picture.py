"""Curves over a table's life as SVG, legible on light and dark pages."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from typing import Final

Points = Sequence[tuple[float, float]]

WIDTH, PANEL, LEFT, RIGHT, HEAD, FOOT = 760, 190, 64, 170, 34, 40
COLORS: Final = ("#d9622b", "#3b78b8", "#8a63b5", "#3f9a63", "#b0892b", "#7b8794")
"""One for each contender, in order; both pages show them."""

STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #222 }
  .head { font-weight: 600 }
  .tick { font-size: 11px; fill: #555; font-variant-numeric: tabular-nums }
  .grid { stroke: #ddd }
  polyline { fill: none; stroke-width: 2 }
"""


def draw(panels: Mapping[str, Mapping[str, Points]]) -> str:
    """Return an SVG of panels, one below the other.

    Args:
        panels: By heading, the points of each contender: the number of batches, and a value.
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colors = {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}
    parts: list[str] = []
    for index, (heading, curves) in zip(count(), panels.items(), strict=False):
        parts.append(f'<g transform="translate(0 {index * (HEAD + PANEL + FOOT)})">')
        parts += _panel(heading, curves, colors)
        parts.append("</g>")
    height = len(panels) * (HEAD + PANEL + FOOT)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="Cost of a batch over the life of a table">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _panel(heading: str, curves: Mapping[str, Points], colors: Mapping[str, str]) -> list[str]:
    last = max(x for points in curves.values() for x, _ in points)
    step = _step(max(y for points in curves.values() for _, y in points))
    top = step * 4
    across, down = (WIDTH - LEFT - RIGHT) / last, PANEL / top
    bottom = HEAD + PANEL
    parts = [f'<text class="head" x="4" y="20">{escape(heading)}</text>']
    for value in (step * number for number in range(5)):
        y = bottom - value * down
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for value in (last * quarter / 4 for quarter in range(5)):
        parts.append(
            f'<text class="tick" x="{LEFT + value * across:.1f}" y="{bottom + 18}" '
            f'text-anchor="middle">{value:.0f}</text>'
        )
    ends = _apart({name: bottom - points[-1][1] * down for name, points in curves.items()})
    for name, points in curves.items():
        line = " ".join(f"{LEFT + x * across:.1f},{bottom - y * down:.1f}" for x, y in points)
        parts.append(
            f'<polyline stroke="{colors[name]}" points="{line}"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{ends[name] + 4:.1f}" '
            f'style="fill:{colors[name]}">{escape(name)}</text>'
        )
    return parts


def _step(largest: float) -> float:
    """Return a round number, four of which reach the largest value."""
    size = 1.0
    while size * 40 <= largest:
        size *= 10
    while size * 4 > largest * 10:
        size /= 10
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 4 >= largest)


def _apart(heights: Mapping[str, float], minimum: float = 15.0) -> dict[str, float]:
    """Return places of labels, moved upwards where they would cover each other."""
    moved: dict[str, float] = {}
    free = float(HEAD + PANEL)
    for name, y in sorted(heights.items(), key=lambda item: -item[1]):
        moved[name] = min(y, free)
        free = moved[name] - minimum
    return moved
