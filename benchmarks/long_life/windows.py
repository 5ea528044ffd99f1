"""What the batches of a window cost, as a line of a table."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.long_life.contenders import Figures
from lance_stream.maintenance.compaction.automatic import AUTO


@dataclass(frozen=True)
class Window:
    """Some batches in a row, and the table after them.

    Attributes:
        batch: Median milliseconds of a batch.
        batch_cpu: Median milliseconds of the CPU of a batch.
        compaction_cpu: Milliseconds of the CPU of compactions, per batch.
        after: What was measured after the last batch, by name.
    """

    batch: float
    batch_cpu: float
    compaction_cpu: float
    after: Figures


def by_window(batches: Sequence[Figures], window: int) -> list[Window]:
    """Return the windows of a contender's batches; the last one may be shorter."""
    return [_window(batches[first : first + window]) for first in range(0, len(batches), window)]


def _window(batches: Sequence[Figures]) -> Window:
    return Window(
        statistics.median(batch["batch ms"] for batch in batches),
        statistics.median(batch["batch CPU ms"] for batch in batches),
        statistics.fmean(batch["compaction CPU ms"] for batch in batches),
        batches[-1],
    )


def curves(
    batches: Mapping[str, Sequence[Figures]], window: int
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return what is drawn: by heading and contender, a value after each window of batches."""
    values: dict[str, Callable[[Window], float]] = {
        "CPU of a batch, in milliseconds, after a number of batches": lambda entry: entry.batch_cpu,
        "Size of the manifest, in MB": lambda entry: entry.after["manifest bytes"] / 1e6,
    }
    return {
        heading: {
            _label(name): [
                (min((index + 1) * window, len(figures)), value(item))
                for index, item in enumerate(by_window(figures, window))
            ]
            for name, figures in batches.items()
        }
        for heading, value in values.items()
    }


def _label(name: str) -> str:
    program, _, every = name.partition(":")
    program = {"ours": "lance-stream"}.get(program, program)
    return program + (f", {every}" if every == AUTO else f", every {every}" if every else "")


def header() -> str:
    """Return the table's first lines."""
    return (
        f"{'':>6} {'':12} {'batch':>7} {'CPU':>7} {'compact':>8} {'manifest':>9} {'open':>6} "
        f"{'point':>6} {'feed':>6} {'frag-':>6} {'dead':>8} {'written':>8}\n"
        f"{'batch':>6} {'contender':12} {'ms':>7} {'ms':>7} {'CPU ms':>8} {'KB':>9} {'ms':>6} "
        f"{'ms':>6} {'ms':>6} {'ments':>6} {'rows':>8} {'MB':>8}"
    )


def row(number: int, name: str, window: Window) -> str:
    """Return a line of the table."""
    after = window.after
    return (
        f"{number:>6} {name:12} {window.batch:7.0f} {window.batch_cpu:7.0f} "
        f"{window.compaction_cpu:8.0f} {after['manifest bytes'] / 1e3:9.0f} {after['open']:6.1f} "
        f"{after['point read']:6.0f} {after.get('feed', float('nan')):6.0f} "
        f"{after['fragments']:6.0f} {after['dead rows']:8.0f} {after['bytes written'] / 1e6:8.1f}"
    )
