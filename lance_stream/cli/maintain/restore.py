"""Makes the content of an older version the newest version."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table
from lance_stream.cli.grammar import new_command
from lance_stream.errors import InvalidInputError


@new_command("restore")
@takes_table
@click.argument("version", metavar="VERSION")
@click.option("--dry-run", is_flag=True, help="Only report; commit nothing.")
@json_option
def command(table: TableArgument, version: str, dry_run: bool, as_json: bool) -> int:
    """Make the content of an older version the newest version.

    VERSION is a number, a tag or a time. Nothing is lost: later versions stay, and can themselves
    be restored. The change feed shows the rows that the restore changed. Streams continue, and do
    not write committed batches again.
    """
    ds, restored = table.open(), table.open(version)
    if restored.branch != ds.branch:
        raise InvalidInputError(
            f"version {version} belongs to another branch, {restored.branch or 'main'}: restore it "
            "there, with --branch"
        )
    after = ds if dry_run else ds.restore(restored.version)
    counts = ds.count_rows(), restored.count_rows()
    if as_json:
        result = {
            "version": after.version,
            "restored_version": restored.version,
            "num_rows_before": counts[0],
            "num_rows": counts[1],
            "is_dry_run": dry_run,
        }
        print(output.to_json(result))
        return 0
    action = "would restore" if dry_run else f"committed version {after.version}: restored"
    rows = f"{output.count(counts[1], 'row')} instead of {counts[0]}"
    print(f"{action} version {restored.version} of {output.moment(restored.timestamp)}, {rows}")
    return 0
