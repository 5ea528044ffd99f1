"""Rewrites small fragments, and fragments with many deleted rows."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import WHOLE_NUMBER, TableArgument, json_option, takes_table
from lance_stream.cli.grammar import new_command
from lance_stream.cli.progress import progress

if TYPE_CHECKING:
    from lance_stream.table.fragments.fragment import Fragment

_TARGET_ROWS = 1 << 20  # as in maintenance.compaction.plan, which loads Arrow


@new_command("compact")
@takes_table
@click.option(
    "--target-rows",
    metavar="N",
    type=WHOLE_NUMBER,
    default=_TARGET_ROWS,
    show_default=True,
    help="The number of rows per fragment to aim for.",
)
@json_option
def command(table: TableArgument, target_rows: int, as_json: bool) -> int:
    """Rewrite small fragments, and fragments with many deleted rows.

    A compaction does not appear in the change feed. Other programs can write at the same time.
    """
    from lance_stream.maintenance.compaction.compact import compact
    from lance_stream.maintenance.compaction.rewrites import RewriteTask, write_task

    before = table.open()
    with progress(f"compacting {before.uri}") as watch:

        def write(tasks: Sequence[RewriteTask]) -> Iterator["list[Fragment]"]:
            for index, task in enumerate(tasks):
                watch(index / len(tasks))
                yield write_task(task)

        after = compact(before.table, target_rows, write).table
    counts = [len(version_table.manifest.fragments) for version_table in (before.table, after)]
    if as_json:
        result = {
            "is_committed": after.version != before.version,
            "version": after.version,
            "num_fragments_before": counts[0],
            "num_fragments": counts[1],
        }
        print(output.to_json(result))
    elif after.version == before.version:
        print(f"nothing to compact at version {before.version}")
    else:
        print(
            f"committed version {after.version}: compacted {output.count(counts[0], 'fragment')} "
            f"to {counts[1]}"
        )
    return 0
