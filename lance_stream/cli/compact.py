"""Writes small fragments, and those with many dead rows, anew; no row changes."""

import argparse
from typing import Final

from lance_stream.cli import output
from lance_stream.cli.arguments import add_table, open_table, whole_number
from lance_stream.maintenance.compaction.plan import TARGET_ROWS

HELP: Final = "write small fragments anew, together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    add_table(parser)
    parser.add_argument(
        "--target-rows",
        type=whole_number,
        default=TARGET_ROWS,
        help=f"how many rows a fragment is to have (default: {TARGET_ROWS})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compact the table."""
    before = open_table(arguments)
    after = before.compact(arguments.target_rows)
    if after.version == before.version:
        print(f"nothing to do: version {before.version} stays")
        return 0
    counts = [len(each.table.manifest.fragments) for each in (before, after)]
    print(f"made version {after.version}: {output.count(counts[0], 'fragment')} became {counts[1]}")
    return 0
