"""Lists the versions of a table, one per line, the newest first."""

from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import WHOLE_NUMBER, TableArgument, json_option, takes_table
from lance_stream.cli.grammar import new_command

if TYPE_CHECKING:
    from lance_stream.snapshot.history import VersionInfo


@new_command("log")
@takes_table
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=WHOLE_NUMBER,
    help="List only this many of the newest versions.",
)
@json_option
def command(table: TableArgument, limit: int | None, as_json: bool) -> int:
    """List the versions of a table, one per line, the newest first."""
    from lance_stream.snapshot.history import list_versions

    versions = list_versions(table.open().table, limit)[::-1]
    if as_json:
        for each in versions:
            print(output.to_json(_described(each)))
        return 0
    rows = [
        [
            str(each.version),
            output.moment(each.timestamp),
            each.operation or "?",
            "?" if each.num_rows is None else str(each.num_rows),
            " ".join(f"{key}={value}" for key, value in sorted(each.properties.items())),
        ]
        for each in versions
    ]
    print("\n".join(output.lines_of(["VERSION", "COMMITTED", "OPERATION", "ROWS", ""], rows)))
    return 0


def _described(version: "VersionInfo") -> dict[str, Any]:
    return {
        "version": version.version,
        "timestamp": version.timestamp,
        "operation": version.operation,
        "num_rows": version.num_rows,
        "properties": dict(version.properties),
    }
