"""Removes old versions, and the files that no remaining version needs.

It keeps the newest version, versions with a tag, and for each consumer the last version it has
finished and all later ones.
"""

import argparse
from typing import Final

from lance_stream.cli import output
from lance_stream.cli.arguments import add_json, add_table, open_table, whole_number
from lance_stream.maintenance.cleanup import CleanupReport

HELP: Final = "remove old versions, and files that are no longer needed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(parser)
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="remove versions of at least this age: 7d, 12h (default: 14d, or any age with "
        "--retain-versions)",
    )
    parser.add_argument(
        "--retain-versions",
        metavar="N",
        type=whole_number,
        help="number of newest versions to keep, whatever their age",
    )
    parser.add_argument("--dry-run", action="store_true", help="only report; remove nothing")
    parser.add_argument(
        "--delete-unverified",
        action="store_true",
        help="remove files that no version ever named, whatever their age: only safe if no program "
        "is writing to the table",
    )
    parser.add_argument(
        "--expire-consumers",
        metavar="AGE",
        help="drop consumers that leave versions unread for this long",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Clean up the table."""
    report = open_table(arguments).cleanup(
        arguments.older_than,
        arguments.retain_versions,
        dry_run=arguments.dry_run,
        delete_unverified=arguments.delete_unverified,
        expire_consumers=arguments.expire_consumers,
    )
    print(_as_json(report) if arguments.json else report)
    return 0


def _as_json(report: CleanupReport) -> str:
    return output.to_json(
        {
            "versions": report.versions,
            "num_files": report.num_files,
            "size_bytes": report.size_bytes,
            "held": report.held,
            "expired_consumers": report.expired_consumers,
            "is_dry_run": report.is_dry_run,
        }
    )
