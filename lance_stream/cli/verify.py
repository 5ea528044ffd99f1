"""Checks every rule of the format on a version: one line for each that it breaks.

Ends with exit code 1 if there is any.
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
)

HELP: Final = "check every rule of the format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    add_table(parser)
    add_version(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify the table."""
    ds = open_table(arguments).checkout(parse_version(arguments.version))
    findings = ds.verify()
    for each in findings:
        told = {"rule": each.rule, "where": each.where, "message": each.message}
        print(output.to_json(told) if arguments.json else each)
    if not findings and not arguments.json:
        print(f"{ds.uri} is sound at version {ds.version}")
    return 1 if findings else 0
