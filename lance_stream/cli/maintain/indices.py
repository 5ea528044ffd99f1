"""Lists the coverage of a table's indices, or updates them."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table, version_option
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.progress import progress
from lance_stream.cli.tables import print_table


@new_group("indices")
def command() -> None:
    """List the coverage of a table's indices, or update them.

    An index lacks rows that were added or changed since its last update. Every search scans them.
    """


@new_command("list")
@takes_table
@version_option
@json_option
def list_all(table: TableArgument, version: str | None, as_json: bool) -> int:
    """List the indices, and the number of rows that each covers."""
    indices = table.open(version).index_coverage()
    if as_json:
        for index in indices:
            result = {
                "name": index.name,
                "kind": index.kind,
                "columns": list(index.columns),
                "rows_indexed": index.rows_indexed,
                "rows_unindexed": index.rows_unindexed,
                "fraction": index.fraction,
                "num_segments": index.num_segments,
                "built_at": index.built_at,
                "bytes": index.size_bytes,
            }
            print(output.to_json(result))
        return 0
    rows = [
        [
            index.name,
            index.kind,
            ", ".join(index.columns),
            *("?" if n is None else str(n) for n in (index.rows_indexed, index.rows_unindexed)),
            "?" if index.fraction is None else f"{index.fraction:.1%}",
            output.moment(index.built_at),
        ]
        for index in indices
    ]
    header = ["NAME", "KIND", "COLUMNS", "ROWS", "NOT COVERED", "COVERED", "BUILT"]
    print_table(header, rows, numbers=("ROWS", "NOT COVERED", "COVERED"))
    return 0


@new_command("optimize")
@takes_table
@click.option(
    "--index",
    "names",
    metavar="NAME",
    multiple=True,
    help="The index to update. Can be repeated.  [default: all that need it]",
)
@click.option("--retrain", is_flag=True, help="Train vector indices again on all rows.")
@json_option
def optimize(table: TableArgument, names: tuple[str, ...], retrain: bool, as_json: bool) -> int:
    """Update indices to the newest version.

    An update does not appear in the change feed. Other programs can write at the same time.
    Requires pylance: pip install 'lance-stream[index]'.
    """
    from lance_stream.maintenance.indices.update_indices import update_indices

    before = table.open()
    with progress(f"updating the indices of {before.uri}"):
        update = update_indices(before.table, names or None, retrain=retrain)
    if as_json:
        result = {
            "is_committed": bool(update.names),
            "version": update.table.version,
            "indices": list(update.names),
        }
        print(output.to_json(result))
    elif update.names:
        print(f"committed version {update.table.version}: {', '.join(update.names)}")
    else:
        print(f"all indices are up to date with version {update.table.version}")
    return 0


command.add_command(list_all)
command.add_command(optimize)
