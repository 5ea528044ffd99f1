"""Prints rows of a table, optionally selected, sorted, limited or counted."""

import click

from lance_stream.cli.arguments import (
    TableArgument,
    format_options,
    limit_option,
    names_option,
    split_names,
    takes_table,
    version_option,
)
from lance_stream.cli.grammar import new_command


@new_command("query")
@takes_table
@names_option("Columns, or paths of struct fields.  [default: all]")
@click.option("--where", metavar="SQL", help="Print only rows that meet this condition.")
@click.option(
    "--order-by",
    metavar="NAME [desc][,...]",
    help="Columns to sort by; nulls are last. Keeps all rows in memory, or with --limit only the "
    "rows to print.",
)
@limit_option("Print at most this many rows.")
@click.option("--count", is_flag=True, help="Print only the number of rows.")
@click.option("--with-row-id", is_flag=True, help="Add the column _rowid.")
@version_option
@format_options
def command(
    table: TableArgument,
    columns: str | None,
    where: str | None,
    order_by: str | None,
    limit: int | None,
    count: bool,
    with_row_id: bool,
    version: str | None,
    format_name: str,
) -> int:
    """Print rows of a table.

    Conditions are SQL expressions: comparisons, AND, OR, NOT, IN, LIKE, BETWEEN, IS NULL,
    functions. For joins and aggregates, use Spark SQL (`lance_table`), or another engine that reads
    Arrow streams.

    Blobs are printed as descriptors: location and size.
    """
    from lance_stream.cli.read.rows_printed import Query, print_count, print_rows
    from lance_stream.cli.read.writers import WRITERS

    query = Query(split_names(columns), where, order_by, limit, with_row_id)
    ds = table.open(version)
    if count:
        print_count(ds, query, as_json=format_name == "json")
    else:
        print_rows(ds, query, WRITERS[format_name]())
    return 0
