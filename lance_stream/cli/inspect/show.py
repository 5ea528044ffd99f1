"""Shows the columns, rows and files of a table, its consumers, and the streams that write it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table, version_option
from lance_stream.cli.grammar import Session, new_command
from lance_stream.cli.output import print_drawn
from lance_stream.cli.references import streams
from lance_stream.cli.tables import bold, print_table


@new_command("show")
@takes_table
@version_option
@json_option
@click.pass_obj
def command(session: Session, table: TableArgument, version: str | None, as_json: bool) -> int:
    """Show the columns, rows and files of a table, its consumers, and the streams that write it.

    The last part recommends maintenance, with the commands to run.
    """
    from lance_stream.cli.inspect.description import describe, read_context
    from lance_stream.cli.inspect.maintenance_advice import (
        as_values,
        current_time,
        recommendations_for,
    )

    ds = table.open(version)
    context = read_context(ds.table)
    info = describe(ds, context)
    now = current_time(session.environment.now_nanos)
    info["recommendations"] = as_values(
        recommendations_for(ds, context, now) if version is None else []
    )
    if as_json:
        print(output.to_json(info))
        return 0
    for line in _lines(info):
        print(line)
    for title, header, rows in _tables(info):
        if rows:
            print_table(header, rows, title=title)
    _print_recommendations(info["recommendations"])
    return 0


def _print_recommendations(recommendations: Sequence[Mapping[str, Any]]) -> None:
    if recommendations:
        print_drawn(f"\n{bold('recommended')}\n")
    for recommendation in recommendations:
        print(f"  {recommendation['message']}")
        if recommendation["command"]:
            print(f"    {recommendation['command']}")


def _lines(info: Mapping[str, Any]) -> Iterator[str]:
    versions = info["versions"]
    has_ids = "with" if info["stable_row_ids"] else "without"
    branch = "" if info["branch"] is None else f", the branch {info['branch']},"
    yield (
        f"{info['uri']}{branch} at version {info['version']} of {output.moment(info['timestamp'])}"
    )
    yield (
        f"{output.count(versions['count'], 'version')}, {versions['oldest']} to "
        f"{versions['newest']}; file version {info['file_version']}, {has_ids} stable row ids"
    )
    num_bytes = info["data_bytes"]
    size = "unknown size" if num_bytes is None else output.size(num_bytes)
    yield (
        f"{output.count(info['num_rows'], 'row')} and {info['num_deleted_rows']} deleted in "
        f"{output.count(info['num_fragments'], 'fragment')}; "
        f"{output.count(info['num_data_files'], 'data file')} of {size}, "
        f"{output.count(info['num_deletion_files'], 'deletion file')}"
    )
    deletes = info["remembered_deletes"]
    if deletes is not None:
        yield (
            f"{output.count(deletes['num_rows'], 'tombstone')} by "
            f"{', '.join(deletes['on'])}, ordered by {deletes['sequence_by']}"
        )
    log = info["write_ahead_log"]
    if log is not None:
        yield (
            "written by a write-ahead log (MemWAL) with "
            f"{output.count(log['num_files'], 'file')} of {output.size(log['bytes'])}: "
            "unmerged rows belong to no version"
        )


def _tables(info: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the title, the header and the rows of each table."""
    yield from (
        (
            "columns",
            ["NAME", "TYPE", ""],
            [
                [column["name"], column["type"], "" if column["nullable"] else "not null"]
                for column in info["columns"]
            ],
        ),
        (
            "indices",
            ["NAME", "KIND", "COLUMNS", "ROWS", "NOT COVERED"],
            [
                [
                    index["name"],
                    index["kind"],
                    ", ".join(index["columns"]),
                    "?" if index["rows_indexed"] is None else str(index["rows_indexed"]),
                    "?" if index["rows_unindexed"] is None else str(index["rows_unindexed"]),
                ]
                for index in info["indices"]
            ],
        ),
        (
            "metadata",
            ["OF", "KEY", "VALUE"],
            [
                [
                    " ".join(filter(None, (entry["of"], entry["column"]))),
                    entry["key"],
                    entry["value"],
                ]
                for entry in info["metadata"]
            ],
        ),
        ("config", ["KEY", "VALUE"], [list(entry) for entry in info["config"].items()]),
        ("streams into it", streams.HEADER, streams.stream_rows(info["streams"])),
        (
            "branches",
            ["NAME", "FROM VERSION"],
            [[branch["name"], str(branch["from"])] for branch in info["branches"]],
        ),
        (
            "files that look like tags or branches but are not",
            ["FILE", "REASON"],
            [list(file) for file in info["unreadable"].items()],
        ),
        ("tags", ["NAME", "VERSION"], [[k, str(v)] for k, v in info["tags"].items()]),
        (
            "consumers",
            ["NAME", "FINISHED", "BEHIND", "UPDATED"],
            [
                [
                    consumer["name"],
                    ("starts with " if consumer["is_beginning"] else "")
                    + f"version {consumer['version']}",
                    output.count(consumer["versions_behind"], "version"),
                    output.moment(consumer["updated_at"]),
                ]
                for consumer in info["consumers"]
            ],
        ),
    )
