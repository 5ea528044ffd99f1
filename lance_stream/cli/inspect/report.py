"""Writes an HTML report of a table: its history, size and readers."""

from pathlib import Path

import click

from lance_stream.cli.arguments import TableArgument, limit_option, takes_table
from lance_stream.cli.grammar import new_command
from lance_stream.cli.progress import progress


@new_command("report")
@takes_table
@click.option(
    "-o",
    "--output",
    "output_file",
    metavar="FILE",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False),
    help="The file to write.",
)
@limit_option("Show only the N newest versions.  [default: 2000]")
@click.option(
    "--sink-log",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help='A file with lines of the log "lance_stream.sink", to show the duration of commits.',
)
def command(
    table: TableArgument, output_file: str, limit: int | None, sink_log: Path | None
) -> int:
    """Write a report of a table's history, size and readers, as one HTML file.

    The page loads nothing from the network. Requires the extra "report".
    """
    from lance_stream.errors import InvalidInputError
    from lance_stream.monitoring.report import DEFAULT_VERSIONS
    from lance_stream.monitoring.series import commits_in_log
    from lance_stream.storage.options.names import is_option

    key, equals, _ = str(output_file).partition("=")
    if equals and is_option(key.lower()):
        raise InvalidInputError(
            f"-o is the file to write, but {key!r} is an option of the table's store: use "
            f"--storage-option {key}=VALUE. To write to a file of that name, use -o ./{key}=VALUE"
        )
    ds = table.open()
    commits = []
    if sink_log is not None:
        with sink_log.open(encoding="utf-8", errors="replace") as lines:
            commits = commits_in_log(lines, ds.uri)
    with progress(f"reading the history of {ds.uri}"):
        report = ds.report(limit or DEFAULT_VERSIONS, commits=commits)
    print(report.save(output_file))
    return 0
