"""Removes old versions, and the files that no version left needs.

The newest version stays, and every version with a tag; of a consumer the version that it has
finished with, and all after it.
"""

import argparse
from typing import Final

from lance_stream.cli import output
from lance_stream.cli.arguments import add_json, add_table, open_table, whole_number
from lance_stream.maintenance.cleanup import CleanupReport

HELP: Final = "remove old versions, and the files that nobody needs any more"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    add_table(parser)
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="how old a version is at least that goes: 7d, 12h (default: 14d, or any age with "
        "--retain-versions)",
    )
    parser.add_argument(
        "--retain-versions",
        metavar="N",
        type=whole_number,
        help="how many of the newest versions stay, whatever their age",
    )
    parser.add_argument("--dry-run", action="store_true", help="remove nothing, and just tell")
    parser.add_argument(
        "--delete-unverified",
        action="store_true",
        help="remove files that no version ever named, however young: only if nobody is writing",
    )
    parser.add_argument(
        "--expire-consumers",
        metavar="AGE",
        help="drop consumers that have let versions lie for so long",
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
