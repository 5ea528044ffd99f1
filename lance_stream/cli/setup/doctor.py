"""Checks whether a stream could run here: one line for each check, with the remedy.

Without a location it checks this machine: Python, Spark, Java, the Python of Spark's workers, and
which extras are installed. With one it also checks whether its store can be reached. With --probe
it writes a small file there and deletes it, to check the create that commits depend on, and the
clocks.

The exit code is 1 if a check failed.
"""

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import Location, TableArgument, json_option, takes_store
from lance_stream.cli.grammar import Session, new_command
from lance_stream.errors import InvalidInputError


@new_command("doctor")
@click.argument("uri", metavar="[URI]", type=Location(), required=False)
@takes_store
@click.option("--probe", is_flag=True, help="Write a small file below the location, and delete it.")
@json_option
@click.pass_obj
def command(session: Session, table: TableArgument | None, probe: bool, as_json: bool) -> int:
    """Check whether a stream could run here: one line for each check, with the remedy.

    Without a location it checks this machine: Python, Spark, Java, the Python of Spark's workers,
    and which extras are installed. With one it also checks whether its store can be reached.

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
