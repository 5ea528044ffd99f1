"""Progress of long-running work, on stderr, if stderr is a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from lance_stream.cli.output import escaped

Advance: TypeAlias = Callable[[float], object]
"""Shows which share of the work is done, from 0 to 1."""


@contextmanager
def progress(task: str, *, is_counted: bool = True) -> Iterator[Advance]:
    """Show that a task is in progress while the block runs, and clear the line afterwards.

    Args:
        task: A few words about it.
        is_counted: Whether the block reports its progress: a bar is drawn.

    Yields:
        A function to call with the share that is done.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield lambda _share: None
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
        yield lambda share: bars.update(task_id, completed=min(share, 1.0))
