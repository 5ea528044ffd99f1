"""Arguments that several verbs share: the table, the options of its store, a version."""

import argparse
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lance_stream.dataset import Dataset, open_dataset
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.opening import VersionSpec
from lance_stream.snapshot.timestamps import parse_moment
from lance_stream.storage.trust import with_trusted


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add the table's arguments to a verb."""
    parser.add_argument("uri", metavar="URI", help="the table's directory: a path, or a URI")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the table's store to a verb."""
    parser.add_argument(
        "-o",
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the table's store; can be repeated",
    )
    parser.add_argument(
        "--trusted-location",
        metavar="URI",
        action="append",
        default=[],
        help="a location below which the table may name files on other services or in other "
        "accounts; can be repeated",
    )


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the version argument to a verb."""
    parser.add_argument(
        "--version",
        metavar="VERSION",
        help="a number, a tag, or a timestamp (in UTC if it has no zone)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for machine-readable output to a verb."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def open_table(arguments: argparse.Namespace) -> Dataset:
    """Return the table of a command at its newest version.

    Raises:
        NotFoundError: There is no table.
        InvalidInputError: The location or an option is invalid.
    """
    return open_dataset(arguments.uri, storage_options=storage_options(arguments))


def parse_version(text: str | None) -> VersionSpec:
    """Parse a version argument."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    with suppress(ValueError):
        return parse_moment(text)
    return text


def whole_number(text: str) -> int:
    """Parse a whole number from 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return number


def storage_options(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Return a command's options of the table's store."""
    pairs = [each.partition("=") for each in arguments.storage_option]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise InvalidInputError(f"a storage option must be KEY=VALUE, not {key!r}")
    options = {key: value for key, _, value in pairs}
    return with_trusted(options, arguments.trusted_location or None) or {}
