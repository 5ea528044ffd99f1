"""Removes a table from a Lance namespace, with its files."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import (
    json_option,
    namespace_option,
    parse_namespace,
    yes_option,
)
from lance_stream.cli.grammar import new_command
from lance_stream.cli.questions import confirm
from lance_stream.errors import InvalidInputError


@new_command("drop")
@click.argument("name", metavar="NAME")
@namespace_option
@yes_option
@json_option
def command(name: str, namespace: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove the table NAME from its Lance namespace, and delete its files with all versions.

    This cannot be undone. Shallow clones of the table stop working, because they read its files.
    """
    from lance_stream.storage.namespaces.locating import drop_table

    if not namespace:
        raise InvalidInputError(
            "drop removes tables of a Lance namespace: add --namespace. To remove any other table, "
            "delete its directory"
        )
    settings = parse_namespace(namespace)
    question = f"Delete the table {name} with all of its versions? This cannot be undone."
    if not confirm(question, is_sure=yes):
        print("nothing was deleted")
        return 1
    drop_table(name, settings)
    print(output.to_json({"dropped": name}) if as_json else f"dropped {name}")
    return 0
