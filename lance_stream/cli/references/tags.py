"""Lists, creates, moves and deletes tags: names for versions, which cleanup keeps."""

from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.tables import print_table

if TYPE_CHECKING:
    from lance_stream.snapshot.tag_files import Tag


@new_group("tags")
def command() -> None:
    """List, create, move and delete tags: names for versions, which cleanup keeps.

    A tag can be used in place of a version: `lance-stream show URI --version gold`.
    """


@new_command("list")
@takes_table
@click.option(
    "--all", "with_reserved", is_flag=True, help="Include the tags of consumers and clones."
)
@json_option
def list_all(table: TableArgument, with_reserved: bool, as_json: bool) -> int:
    """List the tags, without those of consumers and clones."""
    from lance_stream.snapshot.tag_files import RESERVED_PREFIX

    tags = table.open().tags.list().values()
    selected = [tag for tag in tags if with_reserved or not tag.name.startswith(RESERVED_PREFIX)]
    if as_json:
        for tag in selected:
            print(output.to_json(_as_values(tag)))
        return 0
    rows = [
        [tag.name, tag.branch or "", str(tag.version), output.moment(tag.updated_at)]
        for tag in selected
    ]
    print_table(["NAME", "BRANCH", "VERSION", "UPDATED"], rows, numbers=("VERSION",))
    return 0


@new_command("create")
@takes_table
@click.argument("name", metavar="NAME")
@click.argument("version", metavar="[VERSION]", required=False)
@json_option
def create(table: TableArgument, name: str, version: str | None, as_json: bool) -> int:
    """Create a tag on a version, by default the newest."""
    _report("created", table.open(version).tags.create(name), as_json=as_json)
    return 0


@new_command("update")
@takes_table
@click.argument("name", metavar="NAME")
@click.argument("version", metavar="[VERSION]", required=False)
@json_option
def update(table: TableArgument, name: str, version: str | None, as_json: bool) -> int:
    """Move a tag to a version, by default the newest."""
    _report("moved", table.open(version).tags.update(name), as_json=as_json)
    return 0


@new_command("delete")
@takes_table
@click.argument("name", metavar="NAME")
@json_option
def delete(table: TableArgument, name: str, as_json: bool) -> int:
    """Delete a tag. Its version stays until a cleanup removes it."""
    table.open().tags.delete(name)
    print(output.to_json({"deleted": name}) if as_json else f"deleted the tag {name}")
    return 0


def _report(action: str, tag: "Tag", *, as_json: bool) -> None:
    where = "" if tag.branch is None else f" of the branch {tag.branch}"
    if as_json:
        print(output.to_json(_as_values(tag)))
    else:
        print(f"{action} the tag {tag.name}: version {tag.version}{where}")


def _as_values(tag: "Tag") -> dict[str, Any]:
    return {
        "name": tag.name,
        "branch": tag.branch,
        "version": tag.version,
        "created_at": tag.created_at,
        "updated_at": tag.updated_at,
    }


for _subcommand in (list_all, create, update, delete):
    command.add_command(_subcommand)
