"""Shows the progress of long operations on stderr, if it is a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import click

from lance_stream.cli.output import escaped

Advance: TypeAlias = Callable[[float], object]
"""Updates the progress bar; its argument is the fraction of the work that is done, 0 to 1."""


@contextmanager
def progress(task: str) -> Iterator[Advance]:
    """Show that a task is in progress while the block runs, and clear the line afterwards.

    Nothing is shown if the command has the option --json.

    Args:
        task: A short description of the task.

    Yields:
        A function to call with the fraction that is done; until then the bar shows no fraction.
    """
    context = click.get_current_context(silent=True)
    is_json = context is not None and bool(context.params.get("as_json"))
    if is_json or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield lambda _fraction: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")))
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:
        task_id = bars.add_task(escaped(task), total=None)
        yield lambda fraction: bars.update(task_id, total=1.0, completed=min(fraction, 1.0))
