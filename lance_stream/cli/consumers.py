"""Lists the consumers of a table's changes, or drops one.

Cleanup keeps the last version that a consumer has finished, and all later ones: drop consumers that
are no longer used.
"""

import argparse
from typing import Final

from lance_stream.cli import output
from lance_stream.cli.arguments import add_table, open_table
from lance_stream.maintenance.consumers import drop_consumer, list_consumers

HELP: Final = "list the consumers of the changes, or drop one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="list|drop")
    add_table(parts.add_parser("list", help="one line per consumer"))
    drop = parts.add_parser("drop", help="drop a consumer and its progress")
    add_table(drop)
    drop.add_argument("name", metavar="NAME", help="the consumer's name")


def run(arguments: argparse.Namespace) -> int:
    """List or drop consumers."""
    ds = open_table(arguments)
    if arguments.part == "drop":
        drop_consumer(ds.table.refs, arguments.name)
        print(f"dropped the consumer {arguments.name}")
        return 0
    versions = ds.table.log.versions()
    rows = [
        [
            each.name,
            str(each.version),
            str(sum(version > each.version for version in versions)),
            output.moment(each.updated_at),
        ]
        for each in list_consumers(ds.table.refs)
    ]
    print("\n".join(output.lines_of(["NAME", "FINISHED", "BEHIND", "UPDATED"], rows)))
    return 0
