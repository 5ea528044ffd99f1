"""Text tables: they fit the terminal; in a pipe they have their full width.

Cells are escaped before they are drawn, so the only escape sequences are the styles of a header.
`NO_COLOR` and `TERM=dumb` disable these.
"""

import io
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

from lance_stream.cli.output import escaped, num_columns, print_drawn

_GAP: Final = 2
_NARROWEST: Final = 20
_SHORT: Final = 20
"""Cells of at most this width are not folded."""
_FOLDED: Final = 12
"""The least width of a column that is folded."""


def width_of_terminal() -> int | None:
    """Return the number of columns of stdout; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, _NARROWEST)


def is_styled() -> bool:
    """Return whether stdout is a terminal that shows styles."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return sys.stdout.isatty() and not plain


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    numbers: Collection[str] = (),
) -> None:
    """Print a table; see `table_lines`."""
    lines = table_lines(header, rows, title=title, numbers=numbers)
    print_drawn("".join(f"{line}\n" for line in lines))


def table_lines(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None,
    numbers: Collection[str],
) -> list[str]:
    """Return the lines of a table; they are escaped and can contain our styles.

    Args:
        header: The names of the columns.
        rows: The cells; any text.
        title: A line above the table, which is then indented.
        numbers: The right-aligned columns.
    """
    cells = [[escaped(cell) for cell in row] for row in rows]
    indent = 0 if title is None else 2
    width = width_of_terminal()
    if width is None:
        lines = lines_of(header, cells, numbers)
    else:
        lines = _drawn(header, cells, numbers, width - indent)
    lines = [f"{' ' * indent}{line}".rstrip() for line in lines]
    return lines if title is None else ["", bold(title), *lines]


def lines_of(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]
) -> list[str]:
    """Return a table as lines: a header and rows in columns, two spaces between them."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(map(num_columns, column)) for column in zip(*cells, strict=True)]
    right = [name in numbers for name in header]
    return [
        (" " * _GAP).join(aligned(*cell) for cell in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]


def aligned(cell: str, width: int, is_right: bool) -> str:
    """Pad a cell with spaces to a width in terminal columns."""
    spaces = " " * (width - num_columns(cell))
    return spaces + cell if is_right else cell + spaces


def bold(text: str) -> str:
    """Return a text in bold if the terminal shows styles."""
    return f"\x1b[1m{text}\x1b[0m" if is_styled() else text


def _drawn(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str], width: int
) -> list[str]:
    """Return the lines of a table for a terminal, with long cells folded.

    If the other columns leave too little space, lines are longer than the terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False
    )
    widths = [max(map(num_columns, column)) for column in zip(header, *rows, strict=True)]
    is_long = [column > _SHORT for column in widths]
    for name, is_folded in zip(header, is_long, strict=True):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=not is_folded)
    min_widths = [(_FOLDED if column > _SHORT else column) + _GAP for column in widths]
    for row in rows:
        table.add_row(*map(Text, row))
    drawn = io.StringIO()
    styled = is_styled()
    Console(
        file=drawn,
        width=max(width, sum(min_widths) - _GAP),
        force_terminal=styled,
        color_system="standard" if styled else None,
        legacy_windows=False,
        highlight=False,
        _environ={},
    ).print(table)
    return drawn.getvalue().splitlines()
