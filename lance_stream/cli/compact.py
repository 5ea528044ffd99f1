"""Rewrites small fragments, and those with many deleted rows; the change feed shows nothing."""

import argparse
from typing import Final

from lance_stream.cli import output
from lance_stream.cli.arguments import add_table, open_table, whole_number
from lance_stream.maintenance.compaction.plan import TARGET_ROWS

HELP: Final = "merge small fragments into larger ones"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(parser)
    parser.add_argument(
        "--target-rows",
        type=whole_number,
        default=TARGET_ROWS,
        help=f"target number of rows per fragment (default: {TARGET_ROWS})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compact the table."""
    before = open_table(arguments)
    after = before.compact(arguments.target_rows)
    if after.version == before.version:
        print(f"nothing to compact at version {before.version}")
        return 0
    counts = [len(each.table.manifest.fragments) for each in (before, after)]
    print(
        f"committed version {after.version}: compacted {output.count(counts[0], 'fragment')} "
        f"to {counts[1]}"
    )
    return 0
