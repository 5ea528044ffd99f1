"""Prints the inserted, updated and deleted rows, version by version."""

import click

from lance_stream.cli.arguments import (
    TableArgument,
    format_options,
    names_option,
    split_names,
    takes_table,
)
from lance_stream.cli.grammar import Session, new_command


@new_command("changes")
@takes_table
@click.option(
    "--after",
    metavar="VERSION",
    help="Start after this version or tag, or with the first commit at this time or later; 0 "
    "starts with the first version.  [default: 0; with --follow, the newest]",
)
@click.option(
    "--through",
    metavar="VERSION",
    help="The last version, a tag, or the time of the last commit.  [default: the newest]",
)
@click.option("--follow", is_flag=True, help="Continue with new versions.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=float,
    default=1.0,
    show_default=True,
    help="How often --follow polls for a new version.",
)
@names_option("Columns of the table and of the changes.  [default: all]")
@click.option(
    "--filter", metavar="SQL", help="A condition on the table's columns and the change columns."
)
@click.option(
    "--net",
    is_flag=True,
    help="Print one change per row over the whole range; with --follow, over each poll.",
)
@click.option("--no-pre-images", is_flag=True, help="Omit the pre-images of updates.")
@format_options
@click.pass_obj
def command(
    session: Session,
    table: TableArgument,
    after: str | None,
    through: str | None,
    follow: bool,
    interval: float,
    columns: str | None,
    filter: str | None,
    net: bool,
    no_pre_images: bool,
    format_name: str,
) -> int:
    """Print inserted, updated and deleted rows, version by version.

    With --follow, continue with new versions until interrupted or until --through is reached.
    """
    from lance_stream.cli.read.changes_printed import Request, print_changes
    from lance_stream.cli.read.writers import WRITERS

    request = Request(
        after=after,
        through=through,
        is_followed=follow,
        interval=interval,
        columns=split_names(columns),
        filter=filter,
        is_net=net,
        has_pre_images=not no_pre_images,
    )
    writer = WRITERS[format_name]()
    print_changes(table.open(), request, writer, session.environment.sleep)
    return 0
