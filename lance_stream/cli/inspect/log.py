"""Lists the versions of a table, one per line, the newest first."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, limit_option, takes_table
from lance_stream.cli.grammar import new_command
from lance_stream.cli.tables import print_table
from lance_stream.ledger.micro_batch import APP_ID, BATCH_ID

if TYPE_CHECKING:
    from lance_stream.snapshot.history import VersionInfo

NUMBERS: Final = ("VERSION", "ROWS", "BATCH")
"""The right-aligned columns of the table."""


@new_command("log")
@takes_table
@limit_option("List only the N newest versions.")
@click.option(
    "--count-rows",
    is_flag=True,
    help="Read deletion files to count changed rows that the manifests do not state, such as those "
    "of a restore.",
)
@json_option
def command(table: TableArgument, limit: int | None, count_rows: bool, as_json: bool) -> int:
    """List the versions of a table, one per line, the newest first.

    CHANGES are the rows inserted (+), updated (~) and deleted (-). A question mark stands for a
    number that the manifests do not state. --json prints all properties of a version's
    transaction.
    """
    versions = table.open().versions(limit, count_rows=count_rows)[::-1]
    if as_json:
        for version in versions:
            print(output.to_json(as_values(version)))
        return 0
    header, rows = cells_of(versions)
    print_table(header, rows, numbers=NUMBERS)
    return 0


def cells_of(versions: Sequence["VersionInfo"]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the cells of a table of versions."""
    rows = [
        [
            str(version.version),
            output.moment(version.timestamp),
            version.operation or "?",
            _number(version.num_rows),
            _changes(version),
            *_origin(version.properties),
        ]
        for version in versions
    ]
    header = ["VERSION", "COMMITTED", "OPERATION", "ROWS", "CHANGES"]
    if any(APP_ID in version.properties for version in versions):
        return [*header, "STREAM", "BATCH"], rows
    return header, [row[: len(header)] for row in rows]


def _number(number: int | None) -> str:
    return "?" if number is None else str(number)


def _changes(version: "VersionInfo") -> str:
    """Return the numbers of rows that are not 0, inserted, updated and deleted: `+5 ~2 -1`."""
    numbers = {
        "+": version.rows_inserted,
        "~": version.rows_updated,
        "-": version.rows_deleted,
    }
    return " ".join(f"{sign}{_number(number)}" for sign, number in numbers.items() if number != 0)


def _origin(properties: Mapping[str, str]) -> tuple[str, str]:
    """Return the stream and the batch that wrote a version; empty if no stream did."""
    return properties.get(APP_ID, ""), properties.get(BATCH_ID, "")


def as_values(version: "VersionInfo") -> dict[str, Any]:
    """Return a version as JSON values."""
    return {
        "version": version.version,
        "timestamp": version.timestamp,
        "operation": version.operation,
        "num_rows": version.num_rows,
        "rows_inserted": version.rows_inserted,
        "rows_updated": version.rows_updated,
        "rows_deleted": version.rows_deleted,
        "properties": dict(version.properties),
    }
