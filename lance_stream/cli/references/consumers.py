"""Lists the consumers of a table's change feed, or drops one."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.tables import print_table


@new_group("consumers")
def command() -> None:
    """List the consumers of a table's change feed, or drop one.

    Cleanup keeps the last version that a consumer has finished, and all later ones. Drop consumers
    that are no longer used.
    """


@new_command("list")
@takes_table
@json_option
def list_all(table: TableArgument, as_json: bool) -> int:
    """List the consumers, and the number of versions that each has yet to read."""
    from lance_stream.maintenance.consumers import list_consumers

    ds = table.open()
    versions = ds.table.log.versions()
    consumers = list_consumers(ds.table.refs)
    lags = [sum(version > consumer.version for version in versions) for consumer in consumers]
    if as_json:
        for consumer, number in zip(consumers, lags, strict=True):
            result = {
                "name": consumer.name,
                "version": consumer.version,
                "is_beginning": consumer.is_beginning,
                "versions_behind": number,
                "updated_at": consumer.updated_at,
            }
            print(output.to_json(result))
        return 0
    rows = [
        [consumer.name, str(consumer.version), str(number), output.moment(consumer.updated_at)]
        for consumer, number in zip(consumers, lags, strict=True)
    ]
    header = ["NAME", "FINISHED", "BEHIND", "UPDATED"]
    print_table(header, rows, numbers=("FINISHED", "BEHIND"))
    return 0


@new_command("drop")
@takes_table
@click.argument("name", metavar="NAME")
@json_option
def drop(table: TableArgument, name: str, as_json: bool) -> int:
    """Drop the consumer NAME and its progress."""
    from lance_stream.maintenance.consumers import drop_consumer

    drop_consumer(table.open().table.refs, name)
    print(output.to_json({"dropped": name}) if as_json else f"dropped the consumer {name}")
    return 0


command.add_command(list_all)
command.add_command(drop)
