"""Creates a table that starts with the files of another table."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table, version_option
from lance_stream.cli.grammar import new_command


@new_command("clone")
@takes_table
@click.argument("target", metavar="TARGET")
@version_option
@click.option(
    "--no-tag",
    is_flag=True,
    help="Do not tag the version. Then a cleanup of the table can remove files of the clone.",
)
@json_option
def command(
    table: TableArgument, target: str, version: str | None, no_tag: bool, as_json: bool
) -> int:
    """Create a table at TARGET that starts with the files of a version. No rows are copied.

    The version is tagged, so that a cleanup of the table keeps its files.
    """
    ds = table.open(version)
    clone = ds.shallow_clone(target, tag_source=not no_tag)
    if as_json:
        result = {"uri": clone.uri, "version": clone.version, "source": ds.uri}
        print(output.to_json({**result, "source_version": ds.version}))
    else:
        print(f"created {clone.uri} from version {ds.version} of {ds.uri}")
    return 0
