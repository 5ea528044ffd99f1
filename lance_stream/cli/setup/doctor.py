"""Checks whether a stream can run on this machine, and whether a store is reachable."""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import Location, TableArgument, json_option, takes_store
from lance_stream.cli.grammar import Session, new_command
from lance_stream.errors import InvalidInputError


@new_command("doctor")
@click.argument("uri", metavar="[URI]", type=Location(), required=False)
@takes_store
@click.option(
    "--probe",
    is_flag=True,
    help="Write and delete a small file below the location, to check creates and clocks.",
)
@json_option
@click.pass_obj
def command(session: Session, table: TableArgument | None, probe: bool, as_json: bool) -> int:
    """Check whether a stream can run here, and print one line per check, with remedies.

    Without a location, check this machine: Python, Spark, Java, the Python of Spark's workers, and
    the installed extras. With a location, also check whether its store is reachable.

    The exit code is 1 if a check failed.
    """
    from lance_stream.cli.setup import checks

    if table is None and probe:
        raise InvalidInputError("--probe requires a location: lance-stream doctor URI --probe")
    failed = False
    for check in checks.run_checks(table, session.environment, is_probing=probe):
        failed |= check.status == checks.FAILURE
        print(
            output.to_json(check._asdict())
            if as_json
            else f"{check.status:8} {check.name}: {check.message}"
        )
    return int(failed)
