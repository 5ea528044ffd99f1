"""Lists the versions of a table, one per line, the newest first."""

import argparse
from typing import Any, Final

from lance_stream.cli import output
from lance_stream.cli.arguments import add_json, add_table, open_table, whole_number
from lance_stream.snapshot.history import VersionInfo, list_versions

HELP: Final = "list the versions, one per line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(parser)
    parser.add_argument(
        "-n", "--limit", type=whole_number, help="list only this many of the newest versions"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the versions."""
    versions = list_versions(open_table(arguments).table, arguments.limit)[::-1]
    if arguments.json:
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


def _described(version: VersionInfo) -> dict[str, Any]:
    return {
        "version": version.version,
        "timestamp": version.timestamp,
        "operation": version.operation,
        "num_rows": version.num_rows,
        "properties": dict(version.properties),
    }
