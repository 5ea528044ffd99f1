"""Lists the streams that write to a table, or makes the table forget one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, quarantine_option, takes_table
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.tables import print_table

HEADER: Final = ["APP ID", "BATCH", "IN VERSION", "ROWS", "DIGEST"]


@new_group("streams")
def command() -> None:
    """List the streams that write to a table, or make the table forget one.

    The table stores the newest batch of each stream, to recognize batches that Spark repeats.
    """


@new_command("list")
@takes_table
@json_option
def list_all(table: TableArgument, as_json: bool) -> int:
    """List the streams and the newest batch of each."""
    from lance_stream.cli.inspect.description import describe_streams

    streams = describe_streams(table.open().config)
    if as_json:
        for stream in streams:
            print(output.to_json(stream))
        return 0
    print_table(HEADER, stream_rows(streams), numbers=("BATCH", "IN VERSION", "ROWS"))
    return 0


@new_command("forget")
@takes_table
@click.argument("app_id", metavar="APP_ID")
@quarantine_option
@json_option
def forget(table: TableArgument, app_id: str, quarantine: str | None, as_json: bool) -> int:
    """Make the table forget the stream APP_ID, so that its next batch is written in any case.

    The stream's rows stay. Use this only if an error message recommends it: rows that are in the
    table and arrive again are then written twice. Bad rows of a killed sink are quarantined first.
    """
    from lance_stream.errors import NotFoundError
    from lance_stream.quarantine.quarantine_writer import publish, staged_rows
    from lance_stream.quarantine.table import open_both
    from lance_stream.table.config.ledger_entries import config_key, read_entries

    ds = table.open()
    streams = read_entries(ds.config)
    if app_id not in streams:
        raise NotFoundError(
            f"{ds.uri} has no stream {app_id!r}; its streams are {', '.join(streams) or 'none'}"
        )
    if staged_rows(ds.table, streams[app_id].quarantined) is not None:  # only the entry names them
        options = table.storage_options
        newest, _, location = open_both(table.uri, table.branch, quarantine, options)
        publish(location, options or {}, newest, app_id)
    version = ds.update_config({config_key(app_id): None}).version
    result = {"forgotten": app_id, "version": version}
    print(
        output.to_json(result)
        if as_json
        else f"committed version {version}: forgot the stream {app_id}"
    )
    return 0


def stream_rows(streams: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of a table of streams."""
    return [
        [
            stream["app_id"],
            str(stream["batch"]),
            str(stream["version"] or "?"),
            "?" if stream["rows"] is None else str(stream["rows"]),
            stream["digest"] or "?",
        ]
        for stream in streams
    ]


command.add_command(list_all)
command.add_command(forget)
