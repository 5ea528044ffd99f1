"""Lists the tables of a folder or of a Lance namespace."""

from typing import TYPE_CHECKING

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import (
    TableArgument,
    json_option,
    namespace_option,
    parse_namespace,
)
from lance_stream.cli.grammar import new_command
from lance_stream.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator


@new_command("ls")
@click.argument("name", metavar="[NAME]", required=False)
@namespace_option
@json_option
def command(name: str | None, namespace: tuple[str, ...], as_json: bool) -> int:
    """List the tables of the folder NAME, by default the current one.

    With --namespace, list those of a Lance namespace, or of the namespace NAME within it. Their
    names are what other commands take with the same --namespace.
    """
    if namespace:
        for path in _tables_of(parse_namespace(namespace), name):
            print(output.to_json({"table_id": path}) if as_json else ".".join(path))
        return 0
    for table in _tables_in("." if name is None else name):
        print(output.to_json({"name": table}) if as_json else table)
    return 0


def _tables_of(settings: object, name: str | None) -> "Iterator[tuple[str, ...]]":
    from lance_stream.storage.namespaces.client import as_settings, list_tables
    from lance_stream.storage.namespaces.locating import as_path

    return list_tables(as_settings(settings), () if name is None else as_path(name))


def _tables_in(folder: str) -> list[str]:
    tables = TableArgument(folder, {}).tables_in_it()
    if tables is None:
        raise InvalidInputError(
            f"{folder} is not on a local disk: list its tables as a Lance namespace, with "
            f"--namespace impl=dir --namespace root={folder}"
        )
    if not tables:
        raise NotFoundError(
            f"there are no tables directly in the folder {folder!r}. For those of a Lance "
            "namespace, add --namespace impl=dir --namespace root=FOLDER, or --namespace impl=rest "
            "--namespace uri=URL"
        )
    return tables
