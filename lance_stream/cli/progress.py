"""Shows the progress of long operations on stderr, if it is a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from lance_stream.cli.output import escaped

Advance: TypeAlias = Callable[[float], object]
"""Updates the progress bar; its argument is the fraction of the work that is done, 0 to 1."""


@contextmanager
def progress(task: str, *, is_counted: bool = True) -> Iterator[Advance]:
    """Show that a task is in progress while the block runs, and clear the line afterwards.

    Args:
        task: A short description of the task.
        is_counted: Whether to draw a bar, because the block reports its progress.

    Yields:
        A function to call with the fraction that is done.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield lambda _fraction: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = [BarColumn(), TextColumn("{task.percentage:>3.0f}%")] if is_counted else []
    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")))
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *bar,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:
        task_id = bars.add_task(escaped(task), total=1.0 if is_counted else None)
        yield lambda fraction: bars.update(task_id, completed=min(fraction, 1.0))
