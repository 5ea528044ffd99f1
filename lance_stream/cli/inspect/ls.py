"""Lists the tables of a Lance namespace."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import json_option, namespace_option, parse_namespace
from lance_stream.cli.grammar import new_command


@new_command("ls")
@click.argument("name", metavar="[NAME]", required=False)
@namespace_option
@json_option
def command(name: str | None, namespace: tuple[str, ...], as_json: bool) -> int:
    """List the tables of a Lance namespace, or of the namespace NAME within it.

    Their names are what other commands take with the same --namespace.
    """
    from lance_stream.storage.namespaces.client import as_settings, list_tables
    from lance_stream.storage.namespaces.locating import as_path

    parent = () if name is None else as_path(name)
    for path in list_tables(as_settings(parse_namespace(namespace)), parent):
        print(output.to_json({"table_id": path}) if as_json else ".".join(path))
    return 0
