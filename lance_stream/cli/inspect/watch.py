"""Shows the newest versions of a table, its size, consumers and indices, and updates the view."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, limit_option, takes_table
from lance_stream.cli.grammar import Session, new_command
from lance_stream.cli.inspect.log import NUMBERS, as_values, cells_of
from lance_stream.cli.tables import is_styled, table_lines, width_of_terminal

if TYPE_CHECKING:
    from lance_stream.monitoring.measures import TableMeasures
    from lance_stream.snapshot.history import VersionInfo

_KINDS: Final = ("inserted", "updated", "deleted")


@new_command("watch")
@takes_table
@limit_option("Show the N newest versions. Rates are averages over them.", 8)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="How often to read the table.",
)
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option(
    "--sink-log",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help='A file with lines of the log "lance_stream.sink", to show the duration of the phases of '
    "the newest batch.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    table: TableArgument,
    limit: int,
    interval: float,
    once: bool,
    sink_log: Path | None,
    as_json: bool,
) -> int:
    """Show the newest versions, rows per second, small fragments, consumers and indices.

    The view is updated until interrupted. In a pipe, and with --json, updates follow each other.
    """
    from lance_stream.monitoring.measures import TableWatch
    from lance_stream.snapshot.references import branch_uri

    uri = branch_uri(table.uri, table.branch)
    watch = TableWatch(uri, table.storage_options, session.environment)
    with _live_view(is_live=not (once or as_json)) as show:
        while True:
            versions = table.open().versions(limit)
            state = _State(uri, watch.measure(), versions, _phases(sink_log, uri))
            show([output.to_json(state.as_values())] if as_json else state.lines())
            if once:
                return 0
            session.environment.sleep(interval)


@dataclass(frozen=True)
class _State:
    """The state of a table at one moment.

    Attributes:
        uri: The table's location.
        measures: Its size, consumers and indices.
        versions: The newest versions, the newest last.
        phases: The seconds of each phase of the newest batch; empty if unknown.
    """

    uri: str
    measures: "TableMeasures"
    versions: "Sequence[VersionInfo]"
    phases: Mapping[str, float]

    def rates(self) -> dict[str, float | None]:
        """Return the rows per second by kind of change; None if a timestamp or count is unknown."""
        first, last = self.versions[0].timestamp, self.versions[-1].timestamp
        if first is None or last is None or first >= last:
            return dict.fromkeys(_KINDS)
        seconds = (last - first).total_seconds()
        rates: dict[str, float | None] = {}
        for kind in _KINDS:
            counts = [getattr(version, f"rows_{kind}") for version in self.versions[1:]]
            rates[kind] = None if None in counts else sum(counts) / seconds
        return rates

    def as_values(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "uri": self.uri,
            **asdict(self.measures),
            "rows_per_second": self.rates(),
            "phases": dict(self.phases),
            "versions": [as_values(version) for version in reversed(self.versions)],
        }

    def lines(self) -> list[str]:
        """Return the state as lines of text."""
        measures = self.measures
        size = "?" if measures.data_bytes is None else output.size(measures.data_bytes)
        lines = [
            f"{output.escaped(self.uri)}: version {measures.version}, {_age(measures.age_seconds)}",
            f"{output.count(measures.rows, 'row')}, {size} in "
            f"{output.count(measures.fragments, 'fragment')}, {measures.small_fragments} of them "
            f"small; {output.count(measures.deleted_rows, 'deleted row')}",
            "rows per second: "
            + ", ".join(f"{kind} {_rate(rate)}" for kind, rate in self.rates().items()),
        ]
        if self.phases:
            phases = (f"{name} {seconds:.3f} s" for name, seconds in self.phases.items())
            lines.append(f"newest batch: {', '.join(phases)}")
        header, rows = cells_of(self.versions[::-1])
        lines += table_lines(header, rows, title="Versions", numbers=NUMBERS)
        if measures.consumers:
            lines += table_lines(
                ["CONSUMER", "VERSIONS", "ROWS", "OLDEST"],
                [
                    [
                        lag.name,
                        str(lag.versions),
                        "?" if lag.rows is None else str(lag.rows),
                        _age(lag.seconds) if lag.versions else "",
                    ]
                    for lag in measures.consumers
                ],
                title="Unread by consumers",
                numbers=("VERSIONS", "ROWS"),
            )
        if measures.indices:
            lines += table_lines(
                ["INDEX", "COVERAGE", "UNINDEXED ROWS"],
                [
                    [index.name, f"{index.coverage:.1%}", str(index.unindexed_rows)]
                    for index in measures.indices
                ],
                title="Indices",
                numbers=("COVERAGE", "UNINDEXED ROWS"),
            )
        return lines


def _phases(sink_log: Path | None, uri: str) -> Mapping[str, float]:
    """Return the seconds of each phase of the newest batch in a log; empty if there is none."""
    if sink_log is None:
        return {}
    from lance_stream.monitoring.series import commits_in_log

    with sink_log.open(encoding="utf-8", errors="replace") as lines:
        commits = commits_in_log(lines, uri)
    return commits[-1].seconds if commits else {}


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "at an unknown time"
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{output.count(int(seconds // size), unit)} ago"
    return f"{output.count(int(seconds), 'second')} ago"


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


@contextmanager
def _live_view(*, is_live: bool) -> Iterator[Callable[[Sequence[str]], object]]:
    """Yield a function that shows lines: on a terminal in place, otherwise one after the other.

    Args:
        is_live: Whether new lines may replace the previous ones.
    """
    if not is_live or width_of_terminal() is None or not is_styled():
        yield lambda lines: output.print_drawn("".join(f"{line}\n" for line in lines))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.__stdout__, highlight=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        yield lambda lines: live.update(Text.from_ansi("\n".join(lines)), refresh=True)
