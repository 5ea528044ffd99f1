"""Lists the branches of a table: separate histories beside the main one."""

from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table
from lance_stream.cli.grammar import SETTINGS, Group, new_command
from lance_stream.cli.tables import print_table

if TYPE_CHECKING:
    from lance_stream.snapshot.references import Branch


@click.group("branches", cls=Group, context_settings=SETTINGS)
def command() -> None:
    """List the branches of a table: separate histories beside the main one.

    Other commands take a branch with --branch: `lance-stream show URI --branch dev`.
    """


@new_command("list")
@takes_table
@json_option
def list_all(table: TableArgument, as_json: bool) -> int:
    """List the branches, and the version that each started from."""
    found = table.open().branches.list().values()
    if as_json:
        for each in found:
            print(output.to_json(_described(each)))
        return 0
    rows = [
        [each.name, each.parent or "main", str(each.parent_version), output.moment(each.created_at)]
        for each in found
    ]
    print_table(["NAME", "FROM", "VERSION", "CREATED"], rows, numbers=("VERSION",))
    return 0


def _described(branch: "Branch") -> dict[str, Any]:
    return {
        "name": branch.name,
        "parent": branch.parent,
        "parent_version": branch.parent_version,
        "created_at": branch.created_at,
    }


command.add_command(list_all)
