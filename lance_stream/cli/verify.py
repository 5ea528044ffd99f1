"""Checks a version against every rule of the format: one line for each violation.

With --against it compares the rows instead, by their digest, with those of another table, another
version, or parquet files.

The exit code is 1 if a rule is violated, or the rows differ.
"""

import argparse
from typing import Final

from lance_stream.cli import output
from lance_stream.cli.arguments import (
    add_json,
    add_table,
    add_version,
    open_table,
    parse_version,
    storage_options,
)
from lance_stream.dataset import Dataset, open_dataset
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.maintenance.comparing import Comparison, Rows, compare, read_parquet

HELP: Final = "check every rule of the format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(parser)
    add_version(parser)
    add_json(parser)
    parser.add_argument(
        "--deep", action="store_true", help="read and decode every value of every column, too"
    )
    against = parser.add_argument_group("comparing rows")
    against.add_argument(
        "--against",
        metavar="OTHER",
        help="compare the rows with those of this table, or of parquet files on local disk",
    )
    against.add_argument("--against-version", metavar="VERSION", help="the other table's version")
    against.add_argument("--columns", metavar="NAME[,NAME...]", help="compare these columns")
    against.add_argument("--filter", metavar="SQL", help="compare rows for which this is true")


def run(arguments: argparse.Namespace) -> int:
    """Verify the table."""
    ds = open_table(arguments).checkout(parse_version(arguments.version))
    if arguments.against is not None:
        if arguments.deep:
            raise InvalidInputError("--deep checks one table; leave out --against, or --deep")
        return _compare(ds, arguments)
    for name in ("against_version", "columns", "filter"):
        if getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise InvalidInputError(
                f"--{option} is for comparisons with another table: add --against"
            )
    findings = ds.verify(deep=arguments.deep)
    for each in findings:
        answer = {"rule": each.rule, "where": each.where, "message": each.message}
        print(output.to_json(answer) if arguments.json else each)
    if not findings and not arguments.json:
        print(f"{ds.uri} is valid at version {ds.version}")
    return 1 if findings else 0


def _compare(ds: Dataset, arguments: argparse.Namespace) -> int:
    columns = arguments.columns.split(",") if arguments.columns else None
    found = compare(lambda: ds.scan(columns, arguments.filter), _rows_of_other(arguments, columns))
    if arguments.json:
        sides = (("rows", found.ours), ("against", found.theirs))
        answer = {name: {"count": each.num_rows, "digest": each.text} for name, each in sides}
        print(output.to_json({"same": found.is_same, **answer, "columns": list(found.columns)}))
        return 0 if found.is_same else 1
    print(f"{ds.uri} at version {ds.version}: {found.ours}")
    print(f"{arguments.against}: {found.theirs}")
    print("the rows are the same" if found.is_same else _difference(found))
    return 0 if found.is_same else 1


def _rows_of_other(arguments: argparse.Namespace, columns: list[str] | None) -> Rows:
    version = arguments.against_version
    try:
        other = open_dataset(arguments.against, storage_options=storage_options(arguments))
    except NotFoundError:
        if version is not None or "://" in arguments.against:
            raise
    else:
        there = other.checkout(parse_version(version))
        return lambda: there.scan(columns, arguments.filter)
    if arguments.filter is not None:
        raise InvalidInputError("--filter is for tables; parquet files are compared as a whole")
    return lambda: read_parquet(arguments.against, columns)


def _difference(found: Comparison) -> str:
    one, other = found.ours.num_rows, found.theirs.num_rows
    if one != other:
        return f"the rows differ: {one} here, {other} there"
    if found.columns:
        return f"the rows differ in {', '.join(found.columns)}"
    return "the rows differ: each column has the same values, but in different rows"
