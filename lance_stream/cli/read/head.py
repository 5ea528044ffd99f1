"""Prints the first rows of a table."""

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


@new_command("head")
@takes_table
@limit_option("The number of rows.", 10)
@names_option("Columns, or paths of struct fields.  [default: all]")
@version_option
@format_options
def command(
    table: TableArgument, limit: int, columns: str | None, version: str | None, format_name: str
) -> int:
    """Print the first rows of a table, in the order in which they are stored."""
    from lance_stream.cli.read.rows_printed import Query, print_rows
    from lance_stream.cli.read.writers import WRITERS

    query = Query(split_names(columns), None, None, limit)
    print_rows(table.open(version), query, WRITERS[format_name]())
    return 0
