"""Lists, creates and deletes the branches of a table: separate histories."""

from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table, yes_option
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.questions import confirm
from lance_stream.cli.tables import print_table

if TYPE_CHECKING:
    from lance_stream.snapshot.references import Branch


@new_group("branches")
def command() -> None:
    """List, create and delete branches: separate histories of a table.

    Other commands take a branch with --branch: `lance-stream show URI --branch dev`.
    """


@new_command("list")
@takes_table
@json_option
def list_all(table: TableArgument, as_json: bool) -> int:
    """List the branches, and the version from which each was created."""
    branches = table.open().branches.list().values()
    if as_json:
        for branch in branches:
            print(output.to_json(_as_values(branch)))
        return 0
    rows = [
        [
            branch.name,
            branch.parent or "main",
            str(branch.parent_version),
            output.moment(branch.created_at),
        ]
        for branch in branches
    ]
    print_table(["NAME", "FROM", "VERSION", "CREATED"], rows, numbers=("VERSION",))
    return 0


@new_command("create")
@takes_table
@click.argument("name", metavar="NAME")
@click.argument("version", metavar="[VERSION]", required=False)
@json_option
def create(table: TableArgument, name: str, version: str | None, as_json: bool) -> int:
    """Create a branch from a version, by default the newest.

    No rows are copied: the branch starts with the files of that version.
    """
    branch = table.open(version).branches.create(name)
    if as_json:
        print(output.to_json(_as_values(branch)))
    else:
        start = f"version {branch.parent_version} of {branch.parent or 'main'}"
        print(f"created the branch {branch.name} from {start}")
    return 0


@new_command("delete")
@takes_table
@click.argument("name", metavar="NAME")
@yes_option
@json_option
def delete(table: TableArgument, name: str, yes: bool, as_json: bool) -> int:
    """Delete a branch with its versions and files.

    Stop its writers first. A branch that a tag, a consumer or another branch needs is not deleted.
    """
    ds = table.open()
    question = f"Delete the branch {name} of {ds.uri}, with all rows that were written to it?"
    # If there is no such branch, `delete` raises, or removes the files that an earlier delete left.
    exists = name in ds.branches.list()
    if exists and not confirm(question, is_sure=yes):
        print("nothing was deleted")
        return 1
    ds.branches.delete(name)
    print(output.to_json({"deleted": name}) if as_json else f"deleted the branch {name}")
    return 0


def _as_values(branch: "Branch") -> dict[str, Any]:
    return {
        "name": branch.name,
        "parent": branch.parent,
        "parent_version": branch.parent_version,
        "created_at": branch.created_at,
    }


for _subcommand in (list_all, create, delete):
    command.add_command(_subcommand)
