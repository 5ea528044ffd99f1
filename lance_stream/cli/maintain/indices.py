"""Lists the indices of a table and what they cover, or brings them up to date."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table, version_option
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.progress import progress
from lance_stream.cli.tables import print_table


@new_group("indices")
def command() -> None:
    """List the indices of a table and what they cover, or bring them up to date.

    Rows that came or changed since an index was brought up to date are not in it: each search scans
    them.
    """


@new_command("list")
@takes_table
@version_option
@json_option
def list_all(table: TableArgument, version: str | None, as_json: bool) -> int:
    """List the indices, and how many rows each covers."""
    found = table.open(version).index_coverage()
    if as_json:
        for each in found:
            answer = {
                "name": each.name,
                "kind": each.kind,
                "columns": list(each.columns),
                "rows_indexed": each.rows_indexed,
                "rows_unindexed": each.rows_unindexed,
                "fraction": each.fraction,
                "num_segments": each.num_segments,
                "built_at": each.built_at,
                "bytes": each.size_bytes,
            }
            print(output.to_json(answer))
        return 0
    rows = [
        [
            each.name,
            each.kind,
            ", ".join(each.columns),
            *("?" if n is None else str(n) for n in (each.rows_indexed, each.rows_unindexed)),
            "?" if each.fraction is None else f"{each.fraction:.1%}",
            output.moment(each.built_at),
        ]
        for each in found
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
    help="An index; may be given several times. By default all that need it.",
)
@click.option("--retrain", is_flag=True, help="Train vector indices anew from all rows.")
@json_option
def optimize(table: TableArgument, names: tuple[str, ...], retrain: bool, as_json: bool) -> int:
    """Bring indices up to date with the newest version.

    The change feed shows nothing. Other programs may write meanwhile. Needs pylance: pip install
    'lance-stream[index]'.
    """
    from lance_stream.maintenance.indices.update_indices import update_indices

    before = table.open()
    with progress(f"bringing indices of {before.uri} up to date"):
        done = update_indices(before.table, names or None, retrain=retrain)
    if as_json:
        answer = {
            "is_committed": bool(done.names),
            "version": done.table.version,
            "indices": list(done.names),
        }
        print(output.to_json(answer))
    elif done.names:
        print(f"committed version {done.table.version}: {', '.join(done.names)}")
    else:
        print(f"all indices are up to date with version {done.table.version}")
    return 0


command.add_command(list_all)
command.add_command(optimize)
