"""Checks a version against the rules of the format, or compares its rows with others."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import (
    TableArgument,
    checkout,
    json_option,
    names_option,
    split_names,
    takes_table,
    version_option,
)
from lance_stream.cli.grammar import new_command
from lance_stream.cli.progress import progress
from lance_stream.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from lance_stream.dataset import Dataset
    from lance_stream.maintenance.verification.comparing import Comparison, Rows
    from lance_stream.maintenance.verification.verify import Finding


@dataclass(frozen=True)
class _Counterpart:
    """The rows to compare with.

    Attributes:
        table: The table, or Parquet files.
        version: The table's version.
        columns: The columns to compare; None for all.
        filter: A condition that selects the rows to compare.
    """

    table: TableArgument
    version: str | None
    columns: list[str] | None
    filter: str | None


@new_command("verify")
@takes_table
@version_option
@click.option("--deep", is_flag=True, help="Read and decode every value of every column, too.")
@click.option(
    "--against",
    metavar="OTHER",
    help="Compare the rows with those of this table, or of Parquet files on a local disk.",
)
@click.option("--against-version", metavar="VERSION", help="The other table's version.")
@names_option("Compare these columns.")
@click.option("--filter", metavar="SQL", help="Compare only rows that meet this condition.")
@json_option
def command(
    table: TableArgument,
    version: str | None,
    deep: bool,
    against: str | None,
    against_version: str | None,
    columns: str | None,
    filter: str | None,
    as_json: bool,
) -> int:
    """Check a version against the rules of the format, and print one line for each violation.

    With --against, compare the rows by their digest with those of another table, another version,
    or Parquet files.

    The exit code is 1 if a rule is violated or the rows differ.
    """
    ds = table.open(version)
    if against is not None:
        if deep:
            raise InvalidInputError("--deep checks one table: omit --against or --deep")
        other_table = TableArgument(against, table.storage_options)
        other = _Counterpart(other_table, against_version, split_names(columns), filter)
        return _compare(ds, other, as_json=as_json)
    for option, value in (
        ("--against-version", against_version),
        ("--columns", columns),
        ("--filter", filter),
    ):
        if value is not None:
            raise InvalidInputError(
                f"{option} is for comparisons with another table: add --against"
            )
    findings = _findings(ds, deep=deep)
    for finding in findings:
        result = {"rule": finding.rule, "where": finding.where, "message": finding.message}
        print(output.to_json(result) if as_json else finding)
    if not findings and not as_json:
        print(f"{ds.uri} is valid at version {ds.version}")
    return 1 if findings else 0


def _findings(ds: "Dataset", *, deep: bool) -> "list[Finding]":
    from lance_stream.maintenance.verification.verify import verify

    with progress(f"verifying version {ds.version}") as watch:
        return verify(ds.table, deep=deep, watch=watch)


def _compare(ds: "Dataset", other: _Counterpart, *, as_json: bool) -> int:
    from lance_stream.maintenance.verification.comparing import compare

    theirs = _rows_of(other)
    with progress("comparing rows"):
        comparison = compare(lambda: ds.scan(other.columns, other.filter), theirs)
    if as_json:
        sides = (("rows", comparison.ours), ("against", comparison.theirs))
        digests = {name: {"count": side.num_rows, "digest": side.text} for name, side in sides}
        print(
            output.to_json(
                {"same": comparison.is_same, **digests, "columns": list(comparison.columns)}
            )
        )
        return 0 if comparison.is_same else 1
    print(f"{ds.uri} at version {ds.version}: {comparison.ours}")
    print(f"{other.table.uri}: {comparison.theirs}")
    print("the rows are the same" if comparison.is_same else _difference(comparison))
    return 0 if comparison.is_same else 1


def _rows_of(other: _Counterpart) -> "Rows":
    from lance_stream.maintenance.verification.comparing import read_parquet

    uri = other.table.uri
    try:
        newest = other.table.open()
    except NotFoundError:
        if other.version is not None or "://" in uri:
            raise
    else:
        ds = checkout(newest, other.version)
        return lambda: ds.scan(other.columns, other.filter)
    if other.filter is not None:
        raise InvalidInputError(
            "--filter is for tables; Parquet files are compared as a whole: omit it"
        )
    return lambda: read_parquet(uri, other.columns)


def _difference(comparison: "Comparison") -> str:
    one, other = comparison.ours.num_rows, comparison.theirs.num_rows
    if one != other:
        return f"the rows differ: {one} here, {other} there"
    if comparison.columns:
        return f"the rows differ in {', '.join(comparison.columns)}"
    return "the rows differ: each column has the same values, but in different rows"
