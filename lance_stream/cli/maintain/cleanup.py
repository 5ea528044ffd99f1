"""Removes old versions, and the files that no remaining version needs."""

from typing import TYPE_CHECKING

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import (
    WHOLE_NUMBER,
    TableArgument,
    json_option,
    takes_table,
    yes_option,
)
from lance_stream.cli.grammar import new_command
from lance_stream.cli.progress import progress
from lance_stream.cli.questions import confirm

if TYPE_CHECKING:
    from lance_stream.maintenance.cleanup.report import CleanupReport


@new_command("cleanup")
@takes_table
@click.option(
    "--older-than",
    metavar="AGE",
    help="Remove versions of at least this age, such as 7d or 12h.  [default: 14d; with "
    "--retain-versions, any age]",
)
@click.option(
    "--retain-versions",
    metavar="N",
    type=WHOLE_NUMBER,
    help="The number of newest versions to keep, regardless of their age.",
)
@click.option("--dry-run", is_flag=True, help="Only report; remove nothing.")
@click.option(
    "--delete-unverified",
    is_flag=True,
    help="Remove files that no version ever referenced, regardless of their age. Only safe if no "
    "program is writing to the table.",
)
@click.option(
    "--expire-consumers",
    metavar="AGE",
    help="Drop consumers that have left a version unread for this long.",
)
@yes_option
@json_option
def command(
    table: TableArgument,
    older_than: str | None,
    retain_versions: int | None,
    dry_run: bool,
    delete_unverified: bool,
    expire_consumers: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove old versions, and the files that no remaining version needs.

    Keeps the newest version, versions that a tag or branch needs, and, for each consumer, the last
    version that it has finished and all later ones.
    """
    ds = table.open()
    question = (
        f"Delete files of {ds.uri} that no version references, regardless of their age? Programs "
        "that are writing to it now would lose their rows."
    )
    if delete_unverified and not confirm(question, is_sure=yes or dry_run):
        print("nothing was removed")
        return 1
    with progress("searching for unneeded files"):
        report = ds.cleanup(
            older_than,
            retain_versions,
            dry_run=dry_run,
            delete_unverified=delete_unverified,
            expire_consumers=expire_consumers,
        )
    print(_as_json(report) if as_json else report)
    return 0


def _as_json(report: "CleanupReport") -> str:
    return output.to_json(
        {
            "versions": report.versions,
            "num_files": report.num_files,
            "size_bytes": report.size_bytes,
            "protected": report.protected,
            "expired_consumers": report.expired_consumers,
            "is_dry_run": report.is_dry_run,
        }
    )
